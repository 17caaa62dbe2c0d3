"""What the per-row operations compute, in plain torch and float32."""

from __future__ import annotations

import torch


def add_norm(
    residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """residual + delta, and its RMSNorm: [R, H], [R, H], [H] -> [R, H], [R, H]."""
    residual = residual.float() if delta is None else residual.float() + delta.float()
    variance = residual.square().mean(-1, keepdim=True)
    return residual, residual * torch.rsqrt(variance + epsilon) * weight.float()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of heads: x [R, heads, D] with the two halves as pairs, cos and sin [R, D/2]."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def sigmoid_gated(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """x · sigmoid(gate) for [R, width] and [R, width] or [R, 1]."""
    return x.float() * torch.sigmoid(gate.float())


def gated(gate_up: torch.Tensor, activation: str = "silu", limit: float = 0.0) -> torch.Tensor:
    """f(gate) · up for [R, 2·I] -> [R, I]; f is silu or gelu_tanh. Or clamped_swiglu, which isn't of this form."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    if activation == "gelu_tanh":
        return torch.nn.functional.gelu(gate, approximate="tanh") * up
    if activation == "clamped_swiglu":
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1.0)
    assert activation == "silu"
    return torch.nn.functional.silu(gate) * up
