"""The parts that nearly all decoders write in the same way, under the names that Hugging Face gives their tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from models.config import Fields
from models.spec import Attention, Layer, Linear, Mlp, Network, Norm, Part, Rope

# Of layer_types.
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class DenseSizes:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    rope: Rope
    # Of all norms (Norm.plus_one).
    plus_one: bool = False

    def norm(self, name: str, width: int = 0) -> Norm:
        """As wide as the hidden state if `width` isn't given."""
        return Norm(name, width or self.hidden, self.epsilon, self.plus_one)


def read_sizes(
    fields: Fields, *, head_dim: int | None = None, interleaved: bool = False, turns_a_part: bool = False
) -> DenseSizes:
    """What a config says of all layers. `head_dim`: the family's default, where it isn't hidden / heads.
    `turns_a_part`: partial_rotary_factor may say that only the first dimensions of a head are rotated."""
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "dual_chunk_attention_config"):
        fields.refuse_unless(name)
    fields.refuse_unless("rope_interleaved", interleaved)
    fields.choice("hidden_act", ("silu",), "silu")
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", heads)
    if heads % kv_heads:
        fields.refuse("num_key_value_heads", f"a divisor of {heads}")
    dim = fields.count("head_dim", head_dim or max(1, hidden // heads))
    if dim % 8:
        fields.refuse("head_dim", "a multiple of 8")
    return DenseSizes(
        hidden=hidden,
        layers=fields.count("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        epsilon=fields.number("rms_norm_eps", 1e-6),
        rope=fields.rope(dim, interleaved=interleaved, partial=turns_a_part),
    )


def attention(
    sizes: DenseSizes,
    name: str,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: bool = False,
    window: int = 0,
) -> Attention:
    """`name` is that of the layer's attention, with its point."""
    q, kv = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    parts = (Part(f"{name}q_proj", q), Part(f"{name}k_proj", kv), Part(f"{name}v_proj", kv))
    return Attention(
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        qkv=Linear(parts, sizes.hidden, qkv_bias),
        output=Linear((Part(f"{name}o_proj", sizes.hidden),), q, output_bias),
        rope=sizes.rope,
        scale=sizes.head_dim**-0.5,
        q_norm=sizes.norm(f"{name}q_norm", sizes.head_dim) if qk_norm else None,
        k_norm=sizes.norm(f"{name}k_norm", sizes.head_dim) if qk_norm else None,
        window=window,
    )


def mlp(hidden: int, wide: int, name: str, *, bias: bool = False) -> Mlp:
    """`name` is that of the MLP, with its point."""
    return Mlp(
        gate_up=Linear((Part(f"{name}gate_proj", wide), Part(f"{name}up_proj", wide)), hidden, bias),
        down=Linear((Part(f"{name}down_proj", hidden),), wide, bias),
    )


def decoder(fields: Fields, sizes: DenseSizes, layer: Callable[[int, str], Layer]) -> Network:
    """A whole network; `layer` makes a layer of its index and its name, with its point."""
    vocabulary = fields.count("vocab_size", limit=1 << 24)
    tied = fields.flag("tie_word_embeddings")
    return Network(
        vocab_size=vocabulary,
        hidden_size=sizes.hidden,
        embedding="model.embed_tokens.weight",
        layers=tuple(layer(index, f"model.layers.{index}.") for index in range(sizes.layers)),
        norm=sizes.norm("model.norm"),
        head=Linear((Part("model.embed_tokens" if tied else "lm_head", vocabulary),), sizes.hidden),
        max_context=fields.max_context(),
        eos_token_ids=fields.ids("eos_token_id"),
        stored_dtype=fields.stored_dtype(),
    )


def layer_norms(sizes: DenseSizes, name: str) -> tuple[Norm, Norm]:
    """Those before the attention and before the MLP."""
    return sizes.norm(f"{name}input_layernorm"), sizes.norm(f"{name}post_attention_layernorm")


def dense_layer(
    sizes: DenseSizes,
    wide: int,
    name: str,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    window: int = 0,
) -> Layer:
    """An attention and a dense MLP. `name` is that of the layer, with its point."""
    before_attention, before_mlp = layer_norms(sizes, name)
    return Layer(
        before_attention,
        attention(
            sizes, f"{name}self_attn.", qkv_bias=qkv_bias, output_bias=output_bias, qk_norm=qk_norm, window=window
        ),
        before_mlp,
        mlp(sizes.hidden, wide, f"{name}mlp.", bias=mlp_bias),
    )


def dense_decoder(
    fields: Fields,
    sizes: DenseSizes,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    windows: tuple[int, ...] = (),
) -> Network:
    """The network of families whose layers are all an attention and a dense MLP. `windows`: one a layer."""
    wide = fields.count("intermediate_size")

    def layer(index: int, name: str) -> Layer:
        return dense_layer(
            sizes, wide, name, qkv_bias=qkv_bias, output_bias=output_bias, mlp_bias=mlp_bias, qk_norm=qk_norm,
            window=windows[index] if windows else 0,
        )  # fmt: skip

    return decoder(fields, sizes, layer)


def qwen_windows(fields: Fields, layers: int) -> tuple[int, ...]:
    """One window a layer, 0 where all is seen: layer_types, or all from max_window_layers on where windows are used."""
    used = fields.flag("use_sliding_window") and fields.given("sliding_window")
    window = fields.count("sliding_window", limit=1 << 30) if used else 0
    if not fields.given("layer_types"):
        first = fields.count("max_window_layers", 28, least=0)
        return tuple(window if index >= first else 0 for index in range(layers))
    return _windows_by_type(fields, layers, window, (FULL, SLIDING) if used else (FULL,))


def alternating_windows(fields: Fields, layers: int, every: int) -> tuple[int, ...]:
    """One window a layer, 0 where all is seen: by layer_types, or in all layers but each one in `every`."""
    window = fields.count("sliding_window", limit=1 << 30)
    if not fields.given("layer_types"):
        return tuple(window if (index + 1) % every else 0 for index in range(layers))
    return _windows_by_type(fields, layers, window, (FULL, SLIDING))


def _windows_by_type(fields: Fields, layers: int, window: int, allowed: tuple[str, ...]) -> tuple[int, ...]:
    kinds = fields.values["layer_types"]
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in allowed for kind in kinds):
        fields.refuse("layer_types", f"{layers} times {' or '.join(allowed)}")
    return tuple(window if kind == SLIDING else 0 for kind in kinds)
