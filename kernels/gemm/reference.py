"""What a linear computes, in plain torch and float32."""

from __future__ import annotations

import torch


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x·Wᵀ + b: [R, K], [N, K], [N] -> [R, N] float32."""
    out = x.float() @ weight.float().T
    return out if bias is None else out + bias.float()


def linear_by_head(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """out[r, h] = weight[h] · x[r, h]: [R, H, K], [H, N, K] -> [R, H, N], written here."""
    out[:] = torch.einsum("rhk,hnk->rhn", x.float(), weight.float())
