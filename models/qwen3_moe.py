"""Qwen3-MoE: Qwen3 with experts in place of the MLP, in all layers or some."""

from __future__ import annotations

from models.config import Fields
from models.layers.dense import DenseSizes, attention, decoder, layer_norms, mlp, read_sizes
from models.layers.sparse import chosen, experts, router_linear
from models.spec import ExpertRouter, Experts, Layer, Network


def network(fields: Fields) -> Network:
    fields.refuse_unless("layer_types")
    sizes = read_sizes(fields)
    biased = fields.flag("attention_bias")
    window = fields.count("sliding_window", 4096, limit=1 << 30) if fields.flag("use_sliding_window") else 0
    dense = dense_layers(fields, sizes.layers)

    def layer(index: int, name: str) -> Layer:
        before_attention, before_mlp = layer_norms(sizes, name)
        return Layer(
            before_attention,
            attention(sizes, f"{name}self_attn.", qkv_bias=biased, output_bias=biased, qk_norm=True, window=window),
            before_mlp,
            mlp(sizes.hidden, fields.count("intermediate_size"), f"{name}mlp.")
            if index in dense
            else _experts(fields, sizes, f"{name}mlp."),
        )

    return decoder(fields, sizes, layer)


def dense_layers(fields: Fields, layers: int) -> set[int]:
    named = fields.values.get("mlp_only_layers") or []
    if not isinstance(named, list) or not all(type(index) is int for index in named):
        fields.refuse("mlp_only_layers", "a list of layers")
    step = fields.count("decoder_sparse_step", 1)
    return {index for index in range(layers) if index in named or (index + 1) % step}


def _experts(fields: Fields, sizes: DenseSizes, name: str) -> Experts:
    # Two names of one field.
    count = fields.count("num_experts" if fields.given("num_experts") else "num_local_experts")
    router = ExpertRouter(
        linear=router_linear(sizes.hidden, count, name),
        experts=count,
        top_k=chosen(fields, "num_experts_per_tok", count),
        scoring="softmax",
        normalize=fields.flag("norm_topk_prob"),
    )
    return experts(router, fields.count("moe_intermediate_size"), name)
