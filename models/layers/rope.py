"""Tables of the rotary embedding: cos and sin of every position, with the scalings that models use."""

from __future__ import annotations

import math

import torch

from models.config import ModelConfig, RopeScaling


def rope_tables(config: ModelConfig, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos, sin, each [positions, head_dim/2], float32."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    if config.rope_scaling is not None:
        frequencies = _scaled(frequencies, config.rope_scaling)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies[None]
    return angles.cos(), angles.sin()


def _scaled(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    # llama3: long waves are stretched by `factor`, short ones stay, those between are blended.
    turns = scaling.original_context * frequencies / (2 * math.pi)
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = keep.clamp(0.0, 1.0)
    return frequencies / scaling.factor * (1 - keep) + frequencies * keep
