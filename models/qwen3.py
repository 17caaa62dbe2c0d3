"""Qwen3: heads of q and k are normed before the rotation; layers may have a sliding window."""

from __future__ import annotations

from models.config import Fields
from models.layers.dense import dense_decoder, qwen_windows, read_sizes
from models.spec import Network


def network(fields: Fields) -> Network:
    sizes = read_sizes(fields, head_dim=128)
    biased = fields.flag("attention_bias")
    return dense_decoder(
        fields,
        sizes,
        qkv_bias=biased,
        output_bias=biased,
        qk_norm=True,
        windows=qwen_windows(fields, sizes.layers),
    )
