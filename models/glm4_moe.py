"""GLM-4.5 and 4.6: grouped-query attention that rotates half of a head, and DeepSeek-V3's experts behind a few dense
layers.

The layer behind the last, which predicts a further token (num_nextn_predict_layers), is models/heads/mtp.py's.
"""

from __future__ import annotations

from models.config import Fields
from models.layers.dense import DenseSizes, attention, layer_norms, mlp, read_sizes
from models.layers.sparse import choose_experts, sparse_decoder
from models.spec import Layer, Network

DEFAULTS = {"first_k_dense_replace": 1, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5}


def network(fields: Fields) -> Network:
    fields = fields.with_defaults(DEFAULTS)
    sizes = _read_sizes(fields)
    return sparse_decoder(fields, sizes, lambda name, sparse: _layer(fields, sizes, name, sparse=sparse))


def sparse_layer(fields: Fields, name: str) -> Layer:
    """A layer with experts, as the block that predicts further tokens is."""
    fields = fields.with_defaults(DEFAULTS)
    return _layer(fields, _read_sizes(fields), name, sparse=True)


def _read_sizes(fields: Fields) -> DenseSizes:
    return read_sizes(fields, turns_a_part=True)


def _layer(fields: Fields, sizes: DenseSizes, name: str, *, sparse: bool) -> Layer:
    before_attention, before_mlp = layer_norms(sizes, name)
    normed, biased = fields.flag("use_qk_norm"), fields.flag("attention_bias")
    wide = f"{name}mlp."
    return Layer(
        before_attention,
        attention(sizes, f"{name}self_attn.", qkv_bias=biased, qk_norm=normed),
        before_mlp,
        choose_experts(fields, sizes, wide) if sparse else mlp(sizes.hidden, fields.count("intermediate_size"), wide),
    )
