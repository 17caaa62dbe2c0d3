"""What multi-head latent attention over pages computes, in plain torch and float32: one row at a time, no blocks.

Of a token one vector is kept, which all heads share: its normed latent, and beside it the rotated key.

    latents [pages, page_tokens, latent + rope]

A head's key is (kv_up's key part · latent, rotated key) and its value kv_up's value part · latent. Since both are
linear in the latent, they need not be made: q · (K latent) = (Kᵀ q) · latent, and Σ w (V latent) = V Σ w latent.
`absorb` is the first half of that, `attend` is attention with one shared key and value, `expand` is the second
half. `attend_naive` makes keys and values of every head, as the formula says, and gives the same.
"""

from __future__ import annotations

import torch


def store(
    latent: torch.Tensor,  # [R, latent + rope]: normed latent, rotated key
    latents: torch.Tensor,  # [pages, page_tokens, latent + rope], written here
    slots: torch.Tensor,  # [R] int64: page · page_tokens + offset
) -> None:
    latents.view(-1, latents.shape[-1])[slots] = latent.to(latents.dtype)


def split_up(kv_up: torch.Tensor, heads: int, nope: int) -> tuple[torch.Tensor, torch.Tensor]:
    """kv_up [heads·(nope + value), latent] -> its key part [heads, nope, latent], value part [heads, value, latent]."""
    by_head = kv_up.float().view(heads, -1, kv_up.shape[-1])
    return by_head[:, :nope], by_head[:, nope:]


def absorb(
    q: torch.Tensor,  # [R, heads, nope + rope]: the last `rope` dimensions rotated
    key_up: torch.Tensor,  # [heads, nope, latent]
) -> torch.Tensor:  # [R, heads, latent + rope]
    """Queries as `attend` takes them: against a latent and a rotated key."""
    nope = key_up.shape[1]
    q = q.float()
    return torch.cat([torch.einsum("rhn,hnl->rhl", q[..., :nope], key_up.float()), q[..., nope:]], dim=-1)


def attend(
    queries: torch.Tensor,  # [R, heads, latent + rope], from `absorb`
    latents: torch.Tensor,  # [pages, page_tokens, latent + rope]
    tables: torch.Tensor,  # [S, width] int32: pages of each sequence
    query_starts: torch.Tensor,  # [S + 1] int32: sequence s has rows query_starts[s] .. query_starts[s + 1] - 1
    positions: torch.Tensor,  # [R] int32: a row sees positions 0..its own
    scale: float,
    latent_dim: int,
) -> torch.Tensor:  # [R, heads, latent] float32
    """What every head sees of the latents: softmax(scale · query · (latent, rotated key)) · latent."""
    out = torch.empty(*queries.shape[:2], latent_dim, device=queries.device)
    for row, seen in _seen(latents, tables, query_starts, positions):
        weights = torch.softmax(queries[row].float() @ seen.T * scale, dim=-1)  # [heads, position + 1]
        out[row] = weights @ seen[:, :latent_dim]
    return out


def expand(
    attended: torch.Tensor,  # [R, heads, latent]
    value_up: torch.Tensor,  # [heads, value, latent]
) -> torch.Tensor:  # [R, heads · value]
    return torch.einsum("rhl,hvl->rhv", attended.float(), value_up.float()).flatten(1)


def attend_naive(
    q: torch.Tensor,  # [R, heads, nope + rope]: the last `rope` dimensions rotated
    latents: torch.Tensor,
    tables: torch.Tensor,
    query_starts: torch.Tensor,
    positions: torch.Tensor,
    scale: float,
    key_up: torch.Tensor,  # [heads, nope, latent]
    value_up: torch.Tensor,  # [heads, value, latent]
) -> torch.Tensor:  # [R, heads · value]
    """The same with keys and values of every head: expand(attend(absorb(q)))."""
    heads, value, latent_dim = value_up.shape
    out = torch.empty(q.shape[0], heads, value, device=q.device)
    for row, seen in _seen(latents, tables, query_starts, positions):
        latent, rotated = seen[:, :latent_dim], seen[:, latent_dim:]
        keys = torch.einsum("tl,hnl->htn", latent, key_up.float())
        keys = torch.cat([keys, rotated.expand(heads, *rotated.shape)], dim=-1)  # [heads, position + 1, nope + rope]
        values = torch.einsum("tl,hvl->htv", latent, value_up.float())
        weights = torch.softmax(torch.einsum("hd,htd->ht", q[row].float(), keys) * scale, dim=-1)
        out[row] = torch.einsum("ht,htv->hv", weights, values)
    return out.flatten(1)


def _seen(latents, tables, query_starts, positions):
    """Every row with what it sees: [position + 1, latent + rope] float32."""
    page_tokens = latents.shape[1]
    for sequence in range(len(query_starts) - 1):
        for row in range(int(query_starts[sequence]), int(query_starts[sequence + 1])):
            seen = int(positions[row]) + 1
            pages = tables[sequence, : -(-seen // page_tokens)].long()
            yield row, latents[pages].flatten(0, 1)[:seen].float()
