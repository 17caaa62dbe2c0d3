"""Qwen3-Next: gated delta nets in three layers of four, and attention with an output gate in the others; experts beside
one that all rows go to, behind a gate of its own.

A block that predicts a further token (tensors under `mtp.`) is models/heads/mtp.py's.
"""

from __future__ import annotations

from models.config import Fields
from models.layers.dense import layer_norms, mlp
from models.layers.hybrid import gated_attention, gated_experts, hybrid, read_hybrid_sizes
from models.qwen3_moe import dense_layers
from models.spec import DeltaNet, Experts, Layer, Mlp, Network, Part, Stripes

# What its configs leave out.
DEFAULTS = {
    "head_dim": 256, "partial_rotary_factor": 0.25, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
}  # fmt: skip
_OF_EXPERTS = {
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts_per_tok": 10,
    "num_experts": 512, "norm_topk_prob": True, "decoder_sparse_step": 1,
}  # fmt: skip


def network(fields: Fields) -> Network:
    fields = fields.with_defaults(DEFAULTS | _OF_EXPERTS)
    sizes = read_hybrid_sizes(fields)
    dense = dense_layers(fields, sizes.layers)

    def mlp_of(index: int, name: str) -> Mlp | Experts:
        if index in dense:
            return mlp(sizes.hidden, fields.count("intermediate_size"), name)
        return gated_experts(fields, sizes, name)

    return hybrid(fields, sizes, _mixed_by_key_head, mlp_of)


def attention_layer(fields: Fields, name: str, *, sparse: bool) -> Layer:
    """A layer with attention, as the block that predicts further tokens is."""
    fields = fields.with_defaults(DEFAULTS | _OF_EXPERTS)
    sizes, wide = read_hybrid_sizes(fields), f"{name}mlp."
    before_attention, before_mlp = layer_norms(sizes, name)
    own = gated_attention(fields, sizes, f"{name}self_attn.")
    dense = mlp(sizes.hidden, fields.count("intermediate_size", 1), wide)
    return Layer(before_attention, own, before_mlp, gated_experts(fields, sizes, wide) if sparse else dense)


def _mixed_by_key_head(name: str, net: DeltaNet) -> tuple[Part, ...]:
    """Two matrices, in which the outputs of a key head and of its value heads are neighbours: q, k, v, z; and b, a."""
    group = net.value_heads // net.key_heads
    wide = group * net.value_dim
    step = 2 * net.key_dim + 2 * wide

    def turn(matrix: str, own: str, first: int, width: int, step: int) -> Part:
        stripes = Stripes(f"{name}{matrix}", net.key_heads * step, first, width, step)
        return Part(f"{name}{matrix}.{own}", net.key_heads * width, stripes=stripes)

    return (
        turn("in_proj_qkvz", "q", 0, net.key_dim, step),
        turn("in_proj_qkvz", "k", net.key_dim, net.key_dim, step),
        turn("in_proj_qkvz", "v", 2 * net.key_dim, wide, step),
        turn("in_proj_ba", "b", 0, group, 2 * group),
        turn("in_proj_ba", "a", group, group, 2 * group),
        turn("in_proj_qkvz", "z", 2 * net.key_dim + wide, wide, step),
    )
