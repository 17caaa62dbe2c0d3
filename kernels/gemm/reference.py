"""What a linear computes, in plain torch and float32."""

from __future__ import annotations

import torch


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x·Wᵀ + b: [R, K], [N, K], [N] -> [R, N] float32."""
    out = x.float() @ weight.float().T
    return out if bias is None else out + bias.float()
