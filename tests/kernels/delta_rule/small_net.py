"""A small gated delta net whose inputs of a row depend on its token alone, and what the reference makes of a text."""

from __future__ import annotations

import torch

from kernels.delta_rule.reference import Memory, Net, advance

# The most rows that are taken back, and the tokens that there are.
LONGEST, TOKENS = 6, 40
EPSILON = 1e-6


class SmallNet:
    """Two states. Sizes are no multiples of a vector."""

    def __init__(
        self, dtype: torch.dtype, heads: int, taps: int = 4, device: torch.device | str = "cpu",
        longest: int = LONGEST,
    ) -> None:  # fmt: skip
        noise = torch.Generator().manual_seed(0)
        keys, key_dim, value_dim = 2, 12, 20
        channels = 2 * keys * key_dim + heads * value_dim
        weights = torch.randn(taps, channels, generator=noise) / 2
        decay, bias = torch.rand(heads, generator=noise), torch.randn(heads, generator=noise)
        weights, decay, bias = (each.to(device) for each in (weights, decay, bias))
        self.net = Net(keys, heads, key_dim, value_dim, weights, decay, bias)
        self.norm = (torch.rand(value_dim, generator=noise) + 0.5).to(device)
        self.kept, self.dtype = channels + 2 * heads, dtype
        # q, k, v, b, a, z of each token.
        self.of_token = torch.randn(TOKENS, self.kept + heads * value_dim, generator=noise).to(dtype).to(device)
        self.memory = Memory(
            torch.full((2, heads, key_dim, value_dim), torch.nan, device=device),
            torch.full((2, longest + taps - 1, self.kept), torch.nan, dtype=dtype, device=device),
        )

    def expected(self, tokens: list[int]) -> torch.Tensor:
        """All rows of a text, by the reference."""
        rows = self.of_token[tokens].float()
        before = len(self.net.convolution) - 1
        inputs = torch.cat([rows.new_zeros(before, self.kept), rows[:, : self.kept]])
        state, seen = torch.zeros_like(self.memory.states[0]), []
        for at in range(len(tokens)):
            state, out = advance(self.net, state, inputs[at : at + before + 1])
            seen.append(out)
        read = torch.stack(seen)
        normed = read * torch.rsqrt(read.square().mean(-1, keepdim=True) + EPSILON) * self.norm
        return normed.flatten(1) * torch.nn.functional.silu(rows[:, self.kept :])
