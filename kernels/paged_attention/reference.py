"""What attention over pages computes, in plain torch and float32: one row at a time, no blocks."""

from __future__ import annotations

import torch

from kernels.norm_rope_act.reference import rotate


def attend(
    qkv: torch.Tensor,  # [R, (heads + 2·kv_heads)·D]
    keys: torch.Tensor,  # [pages, kv_heads, D, page_tokens], written here
    values: torch.Tensor,  # [pages, kv_heads, page_tokens, D], written here
    tables: list[list[int]],  # pages of each sequence
    sequences: list[int],  # sequence of each row
    positions: list[int],  # position of each row
    cos: torch.Tensor,  # [positions, D/2]
    sin: torch.Tensor,
) -> torch.Tensor:  # [R, heads·D]
    """Rotate q and k, put k and v into their page, and let each row look at positions 0..its own."""
    kv_heads, head_dim, page_tokens = keys.shape[1:]
    rows = qkv.shape[0]
    split = qkv.float().view(rows, -1, head_dim)
    heads = split.shape[1] - 2 * kv_heads
    q, k, v = split.split([heads, kv_heads, kv_heads], dim=1)
    q, k = rotate(q, cos[positions], sin[positions]), rotate(k, cos[positions], sin[positions])
    for row, (sequence, position) in enumerate(zip(sequences, positions, strict=True)):
        page, offset = tables[sequence][position // page_tokens], position % page_tokens
        keys[page, :, :, offset] = k[row].to(keys.dtype)
        values[page, :, offset] = v[row].to(values.dtype)
    out = torch.empty(rows, heads, head_dim)
    for row, (sequence, position) in enumerate(zip(sequences, positions, strict=True)):
        pages = tables[sequence][: position // page_tokens + 1]
        seen_k = torch.cat([keys[page].float() for page in pages], dim=-1)[..., : position + 1]
        seen_v = torch.cat([values[page].float() for page in pages], dim=1)[:, : position + 1]
        group = q[row].view(kv_heads, heads // kv_heads, head_dim)
        weights = torch.softmax(group @ seen_k * head_dim**-0.5, dim=-1)  # [kv_heads, group, position+1]
        out[row] = (weights @ seen_v).reshape(heads, head_dim)
    return out.reshape(rows, heads * head_dim)
