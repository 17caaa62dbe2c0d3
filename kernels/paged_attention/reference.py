"""What attention over pages computes, in plain torch and float32: one row at a time, no blocks.

Rows are rotated and stored before (kernels/kv_store/reference.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.kv_store.reference import from_kept


def attend(
    queries: torch.Tensor,  # [R, heads, D], rotated
    keys: torch.Tensor,  # [pages, kv_heads, page_tokens, D]; bytes: e4m3
    values: torch.Tensor,  # like keys
    tables: Sequence[Sequence[int]],  # pages of each sequence
    sequences: Sequence[int],  # sequence of each row
    places: Sequence[int],  # where each row's own key is in its sequence
    scale: float,
    window: int = 0,
    sinks: torch.Tensor | None = None,  # [heads]: scores that every row has beside those of the places, without values
) -> torch.Tensor:  # [R, heads, D] float32
    """Each row looks at places 0..its own, or at the last `window` of them."""
    out = torch.empty(queries.shape, dtype=torch.float32)
    kv_heads, page_tokens = keys.shape[1:3]
    for row, (sequence, place) in enumerate(zip(sequences, places, strict=True)):
        at = torch.arange(max(0, place + 1 - window) if window else 0, place + 1)
        pages = torch.tensor(tables[sequence])[at // page_tokens]
        seen_k, seen_v = (from_kept(cache[pages, :, at % page_tokens]) for cache in (keys, values))  # [S, kv_heads, D]
        group = queries[row].float().unflatten(0, (kv_heads, -1))  # [kv_heads, group, D]
        scores = torch.einsum("hgd,shd->hgs", group, seen_k) * scale
        if sinks is not None:
            scores = torch.cat([scores, sinks.float().view(kv_heads, -1, 1)], dim=-1)
        weights = torch.softmax(scores, dim=-1)[..., : len(at)]
        out[row] = torch.einsum("hgs,shd->hgd", weights, seen_v).flatten(0, 1)
    return out

