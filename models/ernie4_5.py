"""ERNIE 4.5, dense: Llama's layers with a rotation of neighbouring dimensions."""

from __future__ import annotations

from models.config import Fields
from models.layers.dense import dense_decoder, read_sizes
from models.spec import Network

DEFAULTS = {"rope_theta": 500000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}


def network(fields: Fields) -> Network:
    fields = fields.with_defaults(DEFAULTS)
    fields.refuse_unless("compression_ratio", 1, 1.0)
    biased = fields.flag("use_bias")
    return dense_decoder(
        fields,
        read_sizes(fields, head_dim=128, interleaved=True),
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=biased,
    )
