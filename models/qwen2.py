"""Qwen2 and Qwen2.5: q, k and v have biases; layers may have a sliding window."""

from __future__ import annotations

from models.config import Fields
from models.layers.dense import dense_decoder, qwen_windows, read_sizes
from models.spec import Network


def network(fields: Fields) -> Network:
    sizes = read_sizes(fields)
    return dense_decoder(fields, sizes, qkv_bias=True, windows=qwen_windows(fields, sizes.layers))
