"""Qwen3.5's text models, dense and with experts: Qwen3-Next's layers, with a matrix for each input of a delta net."""

from __future__ import annotations

from models.config import Fields
from models.layers.dense import mlp
from models.layers.hybrid import gated_experts, hybrid, read_hybrid_sizes
from models.qwen3_next import DEFAULTS
from models.spec import DeltaNet, Network, Part

_OF_EXPERTS = {
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts_per_tok": 8, "num_experts": 256,
}  # fmt: skip


def network(fields: Fields) -> Network:
    fields = fields.with_defaults(DEFAULTS)
    sizes = read_hybrid_sizes(fields)
    wide = fields.count("intermediate_size")
    return hybrid(fields, sizes, _mixed, lambda index, name: mlp(sizes.hidden, wide, name))


def sparse_network(fields: Fields) -> Network:
    fields = fields.with_defaults(DEFAULTS | _OF_EXPERTS)
    # They are always normalised.
    fields.refuse_unless("norm_topk_prob", True)
    sizes = read_hybrid_sizes(fields)
    return hybrid(fields, sizes, _mixed, lambda index, name: gated_experts(fields, sizes, name))


def _mixed(name: str, net: DeltaNet) -> tuple[Part, ...]:
    return (
        Part(f"{name}in_proj_qkv", net.channels),
        Part(f"{name}in_proj_b", net.value_heads),
        Part(f"{name}in_proj_a", net.value_heads),
        Part(f"{name}in_proj_z", net.value_heads * net.value_dim),
    )
