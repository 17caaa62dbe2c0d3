"""What a gated delta net computes of a row, in plain torch and float32: a convolution over the last rows, then the
delta rule on the state. Rows come one after the other, each with the same operations: how they are cut into calls
changes no bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Below the root of the length that q and k are divided by.
LENGTH_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Net:
    """Of a layer: how many heads, how wide, and the weights that are no linear."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    convolution: torch.Tensor  # [taps, channels]
    decay: torch.Tensor  # [value_heads]
    decay_bias: torch.Tensor  # [value_heads]


@dataclass(frozen=True, slots=True)
class Memory:
    """What a layer keeps of all sequences."""

    states: torch.Tensor  # [S, value_heads, key_dim, value_dim] float32
    inputs: torch.Tensor  # [S, rows, channels + 2 · value_heads] in the dtype of activations

    def copy(self, source: int, target: int) -> None:
        """From one sequence to another."""
        self.states[target] = self.states[source]
        self.inputs[target] = self.inputs[source]


def advance(
    net: Net,
    state: torch.Tensor,  # [value_heads, key_dim, value_dim]
    window: torch.Tensor,  # [taps, channels + 2 · value_heads]: q, k, v, b and a of the last rows, this row's last
) -> tuple[torch.Tensor, torch.Tensor]:
    """The state behind a row, and what the row reads of it, [value_heads, value_dim]."""
    window = window.float()
    keys, heads, channels = net.key_heads * net.key_dim, net.value_heads, net.convolution.shape[1]
    mixed = torch.nn.functional.silu((window[:, :channels] * net.convolution).sum(0))
    q, k = (_normed(each.view(net.key_heads, net.key_dim)) for each in (mixed[:keys], mixed[keys : 2 * keys]))
    v = mixed[2 * keys :].view(heads, net.value_dim)
    # Each key head serves neighbouring value heads.
    q, k = (each.repeat_interleave(heads // net.key_heads, dim=0) for each in (q * net.key_dim**-0.5, k))
    b, a = window[-1, channels : channels + heads], window[-1, channels + heads :]
    fading = torch.exp(-torch.exp(net.decay) * torch.nn.functional.softplus(a + net.decay_bias))
    state = state * fading[:, None, None]
    known = (state * k[:, :, None]).sum(1)
    change = (v - known) * torch.sigmoid(b)[:, None]
    state = state + k[:, :, None] * change[:, None, :]
    return state, (state * q[:, :, None]).sum(1)


def _normed(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + LENGTH_EPSILON)
