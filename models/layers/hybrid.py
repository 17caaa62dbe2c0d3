"""Layers of hybrids: gated delta nets, attention with an output gate, and experts beside one that all rows go to,
behind a gate of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from models.config import Fields
from models.layers.dense import FULL, DenseSizes, attention, decoder, layer_norms, mlp, read_sizes
from models.layers.sparse import chosen, experts, router_linear
from models.spec import (
    Attention,
    DeltaNet,
    ExpertRouter,
    Experts,
    Layer,
    Linear,
    Mlp,
    Network,
    Norm,
    Part,
    Stack,
    Stripes,
)

LINEAR = "linear_attention"
_AXES = ("mrope_section", "mrope_interleaved")


def hybrid(
    fields: Fields,
    sizes: DenseSizes,
    mixed: Callable[[str, DeltaNet], tuple[Part, ...]],
    mlp_of: Callable[[int, str], Mlp | Experts],
) -> Network:
    """`mixed` gives the parts of a delta net's linear, by its name, `mlp_of` a layer's MLP, by the layer's index and
    its name."""
    full = _full_layers(fields, sizes.layers)
    if not full:
        fields.refuse("layer_types", f"{FULL} in one layer at least")

    def layer(index: int, name: str) -> Layer:
        before_attention, before_mlp = layer_norms(sizes, name)
        own: Attention | DeltaNet
        if index in full:
            own = gated_attention(fields, sizes, f"{name}self_attn.")
        else:
            own = _delta_net(fields, sizes, f"{name}linear_attn.", mixed)
        return Layer(before_attention, own, before_mlp, mlp_of(index, f"{name}mlp."))

    return decoder(fields, sizes, layer)


def read_hybrid_sizes(fields: Fields) -> DenseSizes:
    """Where rotations have axes for images, text has the same position on all: theirs is an ordinary one."""
    sections = {
        name: {key: value for key, value in section.items() if key not in _AXES}
        for name in ("rope_parameters", "rope_scaling")
        if isinstance(section := fields.values.get(name), dict)
    }
    return replace(read_sizes(fields.changed(sections), turns_a_part=True), plus_one=True)


def _full_layers(fields: Fields, layers: int) -> set[int]:
    """Those with attention."""
    if not fields.given("layer_types"):
        every = fields.count("full_attention_interval")
        return {index for index in range(layers) if (index + 1) % every == 0}
    kinds = fields.values["layer_types"]
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (FULL, LINEAR) for kind in kinds):
        fields.refuse("layer_types", f"{layers} times {FULL} or {LINEAR}")
    return {index for index, kind in enumerate(kinds) if kind == FULL}


def gated_attention(fields: Fields, sizes: DenseSizes, name: str) -> Attention:
    """q_proj gives a head's query, then its gate."""
    biased, dim = fields.flag("attention_bias"), sizes.head_dim
    whole = attention(sizes, name, qkv_bias=biased, output_bias=biased, qk_norm=True)
    q, k, v = whole.qkv.parts

    def turn(own: str, first: int) -> Part:
        return Part(f"{q.name}.{own}", q.outputs, stripes=Stripes(q.name, 2 * q.outputs, first, dim, 2 * dim))

    parts = (turn("query", 0), k, v, turn("gate", dim))
    return replace(whole, qkv=Linear(parts, sizes.hidden, biased), gated=True)


def _delta_net(
    fields: Fields, sizes: DenseSizes, name: str, mixed: Callable[[str, DeltaNet], tuple[Part, ...]]
) -> DeltaNet:
    keys, values = fields.count("linear_num_key_heads"), fields.count("linear_num_value_heads")
    if values % keys:
        fields.refuse("linear_num_value_heads", f"a multiple of {keys}")
    key_dim, value_dim = fields.count("linear_key_head_dim"), fields.count("linear_value_head_dim")
    net = DeltaNet(
        key_heads=keys,
        value_heads=values,
        key_dim=key_dim,
        value_dim=value_dim,
        mixed=Linear((), sizes.hidden),
        convolution=f"{name}conv1d.weight",
        taps=fields.count("linear_conv_kernel_dim", limit=64, least=2),
        decay=f"{name}A_log",
        decay_bias=f"{name}dt_bias",
        norm=Norm(f"{name}norm", value_dim, sizes.epsilon),
        output=Linear((Part(f"{name}out_proj", sizes.hidden),), values * value_dim),
    )
    return replace(net, mixed=Linear(mixed(name, net), sizes.hidden))


def gated_experts(fields: Fields, sizes: DenseSizes, name: str) -> Experts:
    count = fields.count("num_experts")
    router = ExpertRouter(
        linear=router_linear(sizes.hidden, count, name),
        experts=count,
        top_k=chosen(fields, "num_experts_per_tok", count),
        scoring="softmax",
        normalize=fields.flag("norm_topk_prob", True),
    )
    wide = fields.count("moe_intermediate_size")
    apart = experts(router, wide, name)
    return replace(
        apart,
        experts=tuple(_in_stack(expert, index, count, wide, name) for index, expert in enumerate(apart.experts)),
        shared=mlp(sizes.hidden, fields.count("shared_expert_intermediate_size"), f"{name}shared_expert."),
        shared_gate=Linear((Part(f"{name}shared_expert_gate", 1),), sizes.hidden),
    )


def _in_stack(expert: Mlp, index: int, count: int, wide: int, name: str) -> Mlp:
    """Qwen3.5's folders have the experts' matrices in one tensor, gates before ups, Qwen3-Next's apart."""

    def part(one: Part, tensor: str, first: int, whole: int) -> Part:
        return replace(one, stack=Stack(f"{name}experts.{tensor}", index, count, first, whole=whole))

    gate, up = expert.gate_up.parts
    (down,) = expert.down.parts
    parts = part(gate, "gate_up_proj", 0, 2 * wide), part(up, "gate_up_proj", wide, 2 * wide)
    return Mlp(
        replace(expert.gate_up, parts=parts),
        replace(expert.down, parts=(part(down, "down_proj", 0, down.outputs),)),
    )
