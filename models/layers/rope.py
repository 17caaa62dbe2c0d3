"""Tables of the rotary embedding: cos and sin of every position, with the scalings that models use."""

from __future__ import annotations

import math

import torch

from models.spec import Rope, RopeScaling


def rope_tables(rope: Rope, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos, sin, each [positions, width/2], float32; column i turns pair i, however pairs lie in a head. Functions are
    computed in float64, so that processors whose libraries differ in its last bits give the same tables."""
    exponents = torch.arange(0, rope.width, 2, dtype=torch.int64).float() / rope.width
    frequencies = 1.0 / (rope.theta ** exponents.double()).float()
    factor = 1.0
    if rope.scaling is not None:
        frequencies, factor = _scaled(frequencies, rope), rope.scaling.attention_factor
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies[None]
    return angles.double().cos().float() * factor, angles.double().sin().float() * factor


def _scaled(frequencies: torch.Tensor, rope: Rope) -> torch.Tensor:
    scaling = rope.scaling
    assert scaling is not None and scaling.kind in ("linear", "llama3", "yarn")
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    # Long waves are stretched by `factor`, short ones stay, those between are blended.
    keep = _llama3_keep(frequencies, scaling) if scaling.kind == "llama3" else _yarn_keep(rope, scaling)
    return frequencies / scaling.factor * (1 - keep) + frequencies * keep


def _llama3_keep(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Linear in the number of turns within the original context."""
    turns = scaling.original_context * frequencies / (2 * math.pi)
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return keep.clamp(0.0, 1.0)


def _yarn_keep(rope: Rope, scaling: RopeScaling) -> torch.Tensor:
    """Linear in the pair's index, from the pair that turns beta_fast times to the one that turns beta_slow times."""

    def pair_that_turns(times: float) -> float:
        return rope.width * math.log(scaling.original_context / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    # The upper clamp is by width, not by pairs, where yarn was first written down; models are trained with it.
    low, high = max(low, 0), min(high, rope.width - 1)
    if low == high:
        high += 0.001
    stretched = (torch.arange(rope.width // 2, dtype=torch.float32) - low) / (high - low)
    return 1 - stretched.clamp(0.0, 1.0)
