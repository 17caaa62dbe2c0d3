"""gpt-oss: a window in every other layer, a sink for each head, experts with biases and a clamped gate, stored in
tensors of all experts, and yarn."""

from __future__ import annotations

from dataclasses import replace

from models.config import Fields
from models.layers.dense import DenseSizes, alternating_windows, attention, decoder, layer_norms, read_sizes
from models.layers.sparse import chosen
from models.spec import ExpertRouter, Experts, Layer, Linear, Mlp, Network, Part, Stack

DEFAULTS = {
    "num_hidden_layers": 36, "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
    "vocab_size": 201_088, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 150_000.0,
    "attention_bias": True, "swiglu_limit": 7.0,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096}


def network(fields: Fields) -> Network:
    fields = fields.with_defaults(DEFAULTS)
    if not fields.given("rope_scaling") and not fields.given("rope_parameters"):
        fields = fields.changed({"rope_scaling": YARN})
    fields.refuse_unless("swiglu_alpha", 1.702)
    sizes, biased = read_sizes(fields), fields.flag("attention_bias")
    windows = alternating_windows(fields, sizes.layers, 2)

    def layer(index: int, name: str) -> Layer:
        before_attention, before_mlp = layer_norms(sizes, name)
        own = f"{name}self_attn."
        attended = attention(sizes, own, qkv_bias=biased, output_bias=biased, window=windows[index])
        return Layer(
            before_attention, replace(attended, sinks=f"{own}sinks"), before_mlp, _experts(fields, sizes, f"{name}mlp.")
        )

    return decoder(fields, sizes, layer)


def _experts(fields: Fields, sizes: DenseSizes, name: str) -> Experts:
    count, wide = fields.count("num_local_experts"), fields.count("intermediate_size")
    limit = fields.number("swiglu_limit")

    def expert(index: int) -> Mlp:
        def part(own: str, outputs: int, tensor: str, first: int = 0, step: int = 1) -> Part:
            stack = Stack(f"{name}experts.{tensor}", index, count, first, step)
            return Part(f"{name}experts.{index}.{own}", outputs, stack=stack)

        gate, up = (part(own, wide, "gate_up_proj", first, 2) for first, own in enumerate(("gate_proj", "up_proj")))
        return Mlp(
            Linear((gate, up), sizes.hidden, bias=True),
            Linear((part("down_proj", sizes.hidden, "down_proj"),), wide, bias=True),
            "clamped_swiglu",
            limit,
        )

    # The softmax of those that are chosen: that of all, made to sum up to one again.
    router = ExpertRouter(
        linear=Linear((Part(f"{name}router", count),), sizes.hidden, bias=True),
        experts=count,
        top_k=chosen(fields, "num_experts_per_tok", count),
        scoring="softmax",
    )
    return Experts(router, tuple(expert(index) for index in range(count)))
