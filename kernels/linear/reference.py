"""What a linear computes, in plain torch: float32 (or exact integers) throughout, rounded once at the end."""

from __future__ import annotations

import torch

from kernels.linear.packing import quantize as quantize_weight


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [R, K] · weight [N, K]ᵀ + bias, float32."""
    y = x.float() @ weight.float().T
    return y if bias is None else y + bias.float()


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 [R, K], values around 128, and float32 scales [R]: x ≈ (q - 128) · scale."""
    x = x.float()
    most = x.abs().amax(1)
    # With a plain number torch multiplies by a reciprocal instead, which rounds twice.
    steps = torch.full_like(most, 127)
    inverse = torch.where(most > 0, steps / most, torch.zeros(()))
    return (torch.round(x * inverse[:, None]) + 128).to(torch.uint8), most / steps


def linear_int8(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The same with both sides in int8: exact sums, then the row's scale, then the output's."""
    rows, row_scales = quantize_rows(x)
    columns, column_scales = quantize_weight(weight)
    sums = (rows.long() - 128) @ columns.long().T
    y = sums.float() * row_scales[:, None] * column_scales
    return y if bias is None else y + bias.float()
