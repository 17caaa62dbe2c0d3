"""Llama and its likes: SmolLM, TinyLlama, Llama 2 and 3."""

from __future__ import annotations

from models.config import Fields
from models.layers.dense import dense_decoder, read_sizes
from models.spec import Network


def network(fields: Fields) -> Network:
    fields.refuse_unless("sliding_window")
    fields.refuse_unless("layer_types")
    biased = fields.flag("attention_bias")
    return dense_decoder(
        fields,
        read_sizes(fields),
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=fields.flag("mlp_bias"),
    )
