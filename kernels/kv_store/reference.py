"""Keys and values of a row are turned and stored in pages, queries are turned, in plain torch and float32.

A slot is page · page_tokens + offset; a row whose slot is negative is padding and is stored nowhere.
"""

from __future__ import annotations

import torch

from kernels.quant.reference import E4M3


def rotate_and_store(
    qkv: torch.Tensor,  # [R, (heads + 2·kv_heads)·D]: q heads, k heads, v heads; rows may be further apart
    keys: torch.Tensor,  # [pages, kv_heads, page_tokens, D], written here; bytes: e4m3
    values: torch.Tensor,  # like keys, written here
    slots: torch.Tensor,  # [R] int64
    positions: torch.Tensor,  # [R] int32: rows of cos and sin
    cos: torch.Tensor,  # [positions, width/2] float32; dimensions from `width` on are not turned
    sin: torch.Tensor,
    queries: torch.Tensor,  # [R, heads, D], written here
    q_weight: torch.Tensor | None = None,  # [D]: RMSNorm of each head before it is turned
    k_weight: torch.Tensor | None = None,
    epsilon: float = 0.0,
    interleaved: bool = False,  # pairs are (2i, 2i+1) instead of (i, i + width/2)
    # begins [R + 1] int32 and slots int64: row r also goes to slots[begins[r]] .. slots[begins[r + 1] - 1]
    also: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    kv_heads, page_tokens, head_dim = keys.shape[1:]
    heads = queries.shape[1]
    q, k, v = qkv.float().unflatten(1, (-1, head_dim)).split([heads, kv_heads, kv_heads], dim=1)
    q, k = normed(q, q_weight, epsilon), normed(k, k_weight, epsilon)
    cos, sin = cos[positions.long()], sin[positions.long()]
    queries[:] = rotated(q, cos, sin, interleaved)
    rows, slots = stored(slots, also)
    page, offset = slots // page_tokens, slots % page_tokens
    keys[page, :, offset] = as_kept(rotated(k, cos, sin, interleaved)[rows], keys.dtype)
    values[page, :, offset] = as_kept(v[rows], values.dtype)


def rotate_and_store_latent(
    q: torch.Tensor,  # [R, heads, nope + rope]
    kv: torch.Tensor,  # [R, latent + rope]: latent before its norm, the shared key before its turn
    weight: torch.Tensor,  # [latent]
    epsilon: float,
    latents: torch.Tensor,  # [pages, page_tokens, latent + rope], written here
    slots: torch.Tensor,  # [R] int64
    positions: torch.Tensor,  # [R] int32
    cos: torch.Tensor,  # [positions, rope/2] float32
    sin: torch.Tensor,
    queries: torch.Tensor,  # [R, heads, latent + rope]: the turned q goes to the last `rope` dimensions
    interleaved: bool = False,
    also: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    rope, latent = 2 * cos.shape[1], len(weight)
    cos, sin = cos[positions.long()], sin[positions.long()]
    queries[..., latent:] = rotated(q[..., -rope:].float(), cos, sin, interleaved)
    kept_latent = normed(kv[:, :latent].float(), weight, epsilon)
    key = rotated(kv[:, None, latent:].float(), cos, sin, interleaved)[:, 0]
    rows, slots = stored(slots, also)
    latents.view(-1, latent + rope)[slots] = torch.cat([kept_latent, key], dim=-1)[rows].to(latents.dtype)


def as_kept(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Numbers as pages of this type keep them. Bytes are e4m3 without a scale: ±448 at most."""
    if dtype != torch.uint8:
        return x.to(dtype)
    return x.float().clamp(-E4M3, E4M3).to(torch.float8_e4m3fn).view(torch.uint8)


def from_kept(kept: torch.Tensor) -> torch.Tensor:
    """The float32 numbers that pages hold."""
    return (kept.contiguous().view(torch.float8_e4m3fn) if kept.dtype == torch.uint8 else kept).float()


def stored(
    slots: torch.Tensor, also: tuple[torch.Tensor, torch.Tensor] | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and the slots they go to, each once: without padding, with second slots."""
    rows = torch.nonzero(slots >= 0)[:, 0]
    slots = slots[rows]
    if also is None:
        return rows, slots
    begins, others = also
    again = torch.repeat_interleave(torch.arange(len(begins) - 1, device=rows.device), begins.diff().long())
    return torch.cat([rows, again]), torch.cat([slots, others[: len(again)]])


def normed(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    if weight is None:
        return x
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight.float()


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """x [R, heads, D] with its first `width` dimensions turned; cos and sin [R, width/2]."""
    half = cos.shape[1]
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    cos, sin, out = cos[:, None], sin[:, None], x.clone()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out
