"""Mistral 7B, Nemo and Small: Llama's layers, all with the same sliding window where the config has one."""

from __future__ import annotations

from models.config import Fields
from models.layers.dense import dense_decoder, read_sizes
from models.spec import Network


def network(fields: Fields) -> Network:
    for name in ("attention_bias", "mlp_bias"):
        fields.refuse_unless(name, False)
    fields.refuse_unless("layer_types")
    sizes = read_sizes(fields)
    window = fields.count("sliding_window", limit=1 << 30) if fields.given("sliding_window") else 0
    return dense_decoder(fields, sizes, windows=(window,) * sizes.layers)
