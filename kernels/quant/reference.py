"""What linears over coded weights compute, in plain torch and float32. Codes come as models/quantized/stored.py
keeps them:

    W[n, k] = (codes[n, k] − zeros[n, g]) · scales[n // block_rows, g]        g = groups[k], or k // group_size
"""

from __future__ import annotations

import torch

# The largest codes.
INT8, E4M3 = 127.0, 448.0
# Below this a row counts as zeros: its scale must not be 0.
SMALLEST = 1e-12


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [R, K] ≈ codes · scale: [R, K] int8, [R] float32. Ties go to the even code."""
    x = x.float()
    scales = x.abs().amax(-1).clamp(min=SMALLEST) / x.new_tensor(INT8)
    return (x / scales[:, None]).round().clamp(-INT8, INT8).to(torch.int8), scales


def quantize_rows_fp8(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x [R, K] ≈ codes · scale of each `group` neighbours: [R, K] float8_e4m3fn, [R, K / group rounded up]."""
    rows, inputs = x.shape
    count = -(-inputs // group)
    grouped = torch.nn.functional.pad(x.float(), (0, count * group - inputs)).view(rows, count, group)
    # By a tensor: torch on a GPU multiplies by a number's reciprocal instead of dividing by it.
    scales = grouped.abs().amax(-1).clamp(min=SMALLEST) / grouped.new_tensor(E4M3)
    codes = (grouped / scales[..., None]).clamp(-E4M3, E4M3).view(rows, -1)[:, :inputs]
    return codes.to(torch.float8_e4m3fn), scales


def linear_int8(
    codes: torch.Tensor,  # [R, K] int8
    row_scales: torch.Tensor,  # [R] float32
    weight: torch.Tensor,  # [N, K] int8
    scales: torch.Tensor,  # [N] float32
    bias: torch.Tensor | None = None,
) -> torch.Tensor:  # [R, N] float32
    # float64 holds every sum of products exactly.
    whole = (codes.double() @ weight.double().T).float()
    out = whole * row_scales[:, None] * scales[None, :]
    return out if bias is None else out + bias.float()


def linear_fp8(
    codes: torch.Tensor,  # [R, K] float8_e4m3fn
    row_scales: torch.Tensor,  # [R, groups]
    weight: torch.Tensor,  # [N, K] float8_e4m3fn
    scales: torch.Tensor,  # [N / block_rows rounded up, groups]
    block_rows: int,
    group: int,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:  # [R, N] float32
    x = codes.float() * row_scales.repeat_interleave(group, dim=1)[:, : codes.shape[1]]
    return _times(x, dense(weight, scales, None, None, group, block_rows), bias)


def linear_coded(
    x: torch.Tensor,  # [R, K]
    codes: torch.Tensor,  # [N, K] int8 or float8_e4m3fn, or [N, K/2 rounded up] uint8: two codes of 4 bits
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    groups: torch.Tensor | None = None,
    group_size: int = 0,
    block_rows: int = 1,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:  # [R, N] float32
    """Weights are made in x's dtype, as they would be in memory."""
    if codes.dtype == torch.uint8:
        codes = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(1)[:, : x.shape[1]]
        zeros = zeros if zeros is not None else torch.full((len(codes), scales.shape[1]), 8, device=codes.device)
    weight = dense(codes, scales, zeros, groups, group_size or x.shape[1], block_rows)
    return _times(x, weight.to(x.dtype), bias)


def dense(
    codes: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    groups: torch.Tensor | None,
    group_size: int,
    block_rows: int,
) -> torch.Tensor:  # [N, K] float32
    outputs, inputs = codes.shape
    at = torch.arange(inputs, device=codes.device) // group_size if groups is None else groups.long()
    rows = torch.arange(outputs, device=codes.device) // block_rows
    values = codes.float()
    if zeros is not None:
        values = values - zeros.float()[:, at]
    return values * scales.float()[rows][:, at]


def _times(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    out = x.float() @ weight.float().T
    return out if bias is None else out + bias.float()
