"""Gemma 3's text model: norms before and behind the attention and the MLP, with weights stored less one; heads of q and
k normed; a window in five layers of six, which turn by a rope of their own; scaled embeddings."""

from __future__ import annotations

import struct
from dataclasses import replace

from models.config import Fields
from models.layers.dense import FULL, SLIDING, alternating_windows, attention, decoder, mlp, read_sizes
from models.spec import Layer, Network

# What its configs leave out.
DEFAULTS = {
    "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
    "sliding_window": 4096, "query_pre_attn_scalar": 256, "tie_word_embeddings": True,
}  # fmt: skip
# By kind of layer: the older configs' field of the rope's theta, and its default.
_THETAS = {FULL: ("rope_theta", 1e6), SLIDING: ("rope_local_base_freq", 1e4)}


def network(fields: Fields) -> Network:
    fields = fields.with_defaults(DEFAULTS)
    fields.choice("hidden_activation", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    fields.refuse_unless("use_bidirectional_attention", False)
    far, near = (_with_rope(fields, kind) for kind in (FULL, SLIDING))
    sizes = replace(read_sizes(far), plus_one=True)
    turned_near = replace(sizes, rope=near.rope(sizes.head_dim))
    windows = alternating_windows(fields, sizes.layers, fields.count("sliding_window_pattern", 6))
    wide, biased = fields.count("intermediate_size"), fields.flag("attention_bias")
    scale = fields.number("query_pre_attn_scalar") ** -0.5

    def layer(index: int, name: str) -> Layer:
        window = windows[index]
        attended = attention(
            turned_near if window else sizes, f"{name}self_attn.", qkv_bias=biased, output_bias=biased, qk_norm=True,
            window=window,
        )  # fmt: skip
        return Layer(
            attention_norm=sizes.norm(f"{name}input_layernorm"),
            attention=replace(attended, scale=scale),
            attention_end_norm=sizes.norm(f"{name}post_attention_layernorm"),
            mlp_norm=sizes.norm(f"{name}pre_feedforward_layernorm"),
            mlp=replace(mlp(sizes.hidden, wide, f"{name}mlp."), activation="gelu_tanh"),
            mlp_end_norm=sizes.norm(f"{name}post_feedforward_layernorm"),
        )

    whole = decoder(far, sizes, layer)
    return replace(whole, embedding_scale=_rounded(sizes.hidden**0.5, whole.stored_dtype))


def _with_rope(fields: Fields, kind: str) -> Fields:
    """As if all layers were of one kind. Newer configs say rope_parameters of each kind; in older ones rope_scaling is
    that of layers that see all."""
    sections = fields.values.get("rope_parameters") or {}
    if not isinstance(sections, dict) or not all(name in _THETAS for name in sections):
        fields.refuse("rope_parameters", f"an object for {FULL} and one for {SLIDING}")
    theta, default = _THETAS[kind]
    older = fields.values.get("rope_scaling") or {} if kind == FULL else {}
    own = sections.get(kind) or {}
    for name, section in (("rope_scaling", older), ("rope_parameters", own)):
        if not isinstance(section, dict):
            fields.refuse(name, f"an object for {kind}")
    rope = {"rope_theta": fields.number(theta, default, above=1.0)} | older | own
    # It has hidden_activation in this place.
    return fields.changed({"rope_parameters": rope, "rope_scaling": None, "hidden_act": None})


def _rounded(value: float, dtype: str) -> float:
    """As the model was trained: the factor has the dtype of the embedding."""
    if dtype != "bfloat16":
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    bits = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])
