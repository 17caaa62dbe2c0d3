"""ERNIE 4.5 with experts: the dense model's attention, and experts in a run of layers."""

from __future__ import annotations

from models.config import Fields
from models.ernie4_5 import DEFAULTS
from models.layers.dense import DenseSizes, attention, decoder, layer_norms, mlp, read_sizes
from models.layers.sparse import chosen, experts, router_linear
from models.spec import ExpertRouter, Experts, Layer, Network


def network(fields: Fields) -> Network:
    fields = fields.with_defaults(DEFAULTS)
    fields.refuse_unless("use_bias", False)
    fields.refuse_unless("moe_use_aux_free", True)
    fields.refuse_unless("compression_ratio", 1, 1.0)
    sizes = read_sizes(fields, interleaved=True)
    sparse = _sparse_layers(fields, sizes.layers)

    def layer(index: int, name: str) -> Layer:
        before_attention, before_mlp = layer_norms(sizes, name)
        return Layer(
            before_attention,
            attention(sizes, f"{name}self_attn."),
            before_mlp,
            _experts(fields, sizes, f"{name}mlp.")
            if index in sparse
            else mlp(sizes.hidden, fields.count("intermediate_size"), f"{name}mlp."),
        )

    return decoder(fields, sizes, layer)


def _sparse_layers(fields: Fields, layers: int) -> set[int]:
    """From the first to the last (-1: to the end), every so many."""
    first = fields.count("moe_layer_start_index", 1, least=0)
    last = fields.count("moe_layer_end_index", -1, least=-1)
    interval = fields.count("moe_layer_interval", 1)
    last = layers - 1 if last == -1 else last
    return {index for index in range(layers) if first <= index <= last and (index + 1) % interval == 0}


def _experts(fields: Fields, sizes: DenseSizes, name: str) -> Experts:
    count = fields.count("moe_num_experts")
    router = ExpertRouter(
        linear=router_linear(sizes.hidden, count, name),
        experts=count,
        top_k=chosen(fields, "moe_k", count),
        scoring="softmax",
        bias=f"{name}moe_statics.e_score_correction_bias",
        bias_shape=(1, count),
        epsilon=fields.number("moe_norm_min", 1e-12),
        normalize_floor=True,
    )
    shared = fields.count("moe_num_shared_experts", 2, least=0)
    return experts(router, fields.count("moe_intermediate_size"), name, shared=shared)
