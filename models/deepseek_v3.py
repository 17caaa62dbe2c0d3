"""DeepSeek-V3 and R1, and what has their layers (Kimi K2, GLM-4.7 Flash): multi-head latent attention, and experts
behind a few dense layers.

The layer behind the last, which predicts a further token (num_nextn_predict_layers), is models/heads/mtp.py's.
"""

from __future__ import annotations

from models.config import Fields, yarn_magnitude
from models.layers.dense import DenseSizes, layer_norms, mlp
from models.layers.sparse import choose_experts, sparse_decoder
from models.spec import LatentAttention, Layer, Linear, Network, Norm, Part

# Of the norms within the attention, whatever rms_norm_eps says.
_INNER_EPSILON = 1e-6


def network(fields: Fields) -> Network:
    _refuse_what_is_not_computed(fields)
    sizes = _read_sizes(fields)
    return sparse_decoder(fields, sizes, lambda name, sparse: _layer(fields, sizes, name, sparse=sparse))


def sparse_layer(fields: Fields, name: str) -> Layer:
    """A layer with experts, as the block that predicts further tokens is."""
    return _layer(fields, _read_sizes(fields), name, sparse=True)


def _layer(fields: Fields, sizes: DenseSizes, name: str, *, sparse: bool) -> Layer:
    before_attention, before_mlp = layer_norms(sizes, name)
    wide = f"{name}mlp."
    return Layer(
        before_attention,
        _attention(fields, sizes, f"{name}self_attn."),
        before_mlp,
        choose_experts(fields, sizes, wide) if sparse else mlp(sizes.hidden, fields.count("intermediate_size"), wide),
    )


def _refuse_what_is_not_computed(fields: Fields) -> None:
    fields.choice("hidden_act", ("silu",), "silu")
    fields.refuse_unless("moe_layer_freq", 1)
    fields.refuse_unless("num_key_value_heads", fields.count("num_attention_heads"))


def _read_sizes(fields: Fields) -> DenseSizes:
    heads, turning = fields.count("num_attention_heads"), fields.count("qk_rope_head_dim")
    if turning % 2:
        fields.refuse("qk_rope_head_dim", "an even number")
    return DenseSizes(
        hidden=fields.count("hidden_size"),
        layers=fields.count("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=turning + fields.count("qk_nope_head_dim"),
        epsilon=fields.number("rms_norm_eps", 1e-6),
        rope=fields.rope(turning, interleaved=fields.flag("rope_interleave", True)),
    )


def _attention(fields: Fields, sizes: DenseSizes, name: str) -> LatentAttention:
    latent, value = fields.count("kv_lora_rank"), fields.count("v_head_dim")
    biased = fields.flag("attention_bias")
    rank = fields.count("q_lora_rank") if fields.given("q_lora_rank") else 0
    to_heads = sizes.heads * sizes.head_dim
    nope = sizes.head_dim - sizes.rope.width
    return LatentAttention(
        heads=sizes.heads,
        nope_dim=nope,
        rope_dim=sizes.rope.width,
        value_dim=value,
        latent_dim=latent,
        q=Linear((Part(f"{name}q_b_proj", to_heads),), rank)
        if rank
        else Linear((Part(f"{name}q_proj", to_heads),), sizes.hidden),
        q_down=Linear((Part(f"{name}q_a_proj", rank),), sizes.hidden, biased) if rank else None,
        q_norm=Norm(f"{name}q_a_layernorm", rank, _INNER_EPSILON) if rank else None,
        kv_down=Linear((Part(f"{name}kv_a_proj_with_mqa", latent + sizes.rope.width),), sizes.hidden, biased),
        kv_norm=Norm(f"{name}kv_a_layernorm", latent, _INNER_EPSILON),
        kv_up=Linear((Part(f"{name}kv_b_proj", sizes.heads * (nope + value)),), latent),
        output=Linear((Part(f"{name}o_proj", sizes.hidden),), sizes.heads * value, biased),
        rope=sizes.rope,
        scale=_scale(fields, sizes.head_dim),
    )


def _scale(fields: Fields, head_dim: int) -> float:
    """A stretched rope may ask for larger scores, through mscale_all_dim."""
    section = fields.rope_section()
    if section.kind() == "default" or not section.given("mscale_all_dim"):
        return head_dim**-0.5
    magnitude = yarn_magnitude(section.number("factor"), section.number("mscale_all_dim", above=-1.0))
    return head_dim**-0.5 * magnitude**2
