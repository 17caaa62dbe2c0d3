"""DFlash: a few layers that draft a block in one pass over the text's last token and masks, each of which sees all of
them. What the layers know of the text are keys and values made from values of the target model, so a text costs a few
products a token.

    taps ─▶ fc ─▶ hidden_norm ─▶ keys and values of every layer                          positions 0 .. n-1
    the last token, mask, mask, ... ─▶ layers, which see the text and the block ─▶ a token a mask      n, n+1, ...

Layout, that of the authors (`DFlashDraftModel`): `fc`, `hidden_norm`, `layers.N.*` as Qwen3's, `norm`; embedding and
head are the target's where the folder lacks them. `dflash_config` (or the config itself) names `mask_token_id` and
`target_layer_ids`. Speculators' layout names `aux_hidden_state_layer_ids`, counted from 1.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from models.config import Fields
from models.errors import ModelError
from models.heads.fields import FOR_ANOTHER, check_sizes, draft_vocabulary, flat, shared_with
from models.heads.head import Head, Mask
from models.heads.row import HeadRow
from models.layers.dense import dense_layer, qwen_windows, read_sizes
from models.spec import Linear, Network, Norm, Part
from models.taps import Tap

# What some checkpoints ask for and the layers don't compute.
NOT_COMPUTED = ("causal", "is_causal", "use_swa", "attention_sink_bias", "add_swa_attention_sink_bias")


def read(fields: Fields, names: Collection[str], target: Network) -> Head:
    fields = merged(fields)
    fields.refuse_unless("sample_from_anchor", False)
    return head_of(fields, names, target, by_last_token=False)


def merged(fields: Fields) -> Fields:
    """With what its sections say."""
    section = fields.values.get("dflash_config")
    return flat(fields).changed(section if isinstance(section, dict) else {})


def head_of(fields: Fields, names: Collection[str], target: Network, by_last_token: bool) -> Head:
    """`by_last_token`: whether a block of k rows gives k tokens, one of them by the text's last token."""
    check_sizes(fields, target)
    for name in NOT_COMPUTED:
        fields.refuse_unless(name, False)
    # DFlash2 has them.
    for name in ("conv_kernel_size", "selector_rank"):
        fields.refuse_unless(name)
    fields.refuse_unless("attention_value_scale", 1.0)
    fields.refuse_unless("is_neox_style", True)
    fields.refuse_unless("use_aux_hidden_state", True)
    sizes, biased = read_sizes(fields), fields.flag("attention_bias")
    if any(qwen_windows(fields, sizes.layers)):
        fields.refuse("sliding_window", "null: the layers see the whole text")
    wide = fields.count("intermediate_size")
    own, id_offsets = draft_vocabulary(fields, names, target)
    taps = _taps(fields, len(target.layers))
    network = Network(
        vocab_size=target.vocab_size,
        hidden_size=sizes.hidden,
        embedding="embed_tokens.weight",
        layers=tuple(
            dense_layer(sizes, wide, f"layers.{index}.", qkv_bias=biased, output_bias=biased, qk_norm=True)
            for index in range(sizes.layers)
        ),
        norm=Norm("norm", sizes.hidden, sizes.epsilon),
        head=Linear((Part("lm_head", own),), sizes.hidden),
        max_context=target.max_context,
        eos_token_ids=target.eos_token_ids,
        stored_dtype=fields.stored_dtype(),
        context=Norm("hidden_norm", sizes.hidden, sizes.epsilon),
    )
    rows = fields.count("block_size", 16, limit=64, least=2)
    token = fields.count("mask_token_id", limit=target.vocab_size - 1, least=0)
    return Head(
        network=network,
        taps=taps,
        combine=Linear((Part("fc", sizes.hidden),), len(taps) * target.hidden_size),
        id_offsets=id_offsets,
        shared=shared_with(target, names, "embed_tokens.weight", "lm_head"),
        mask=Mask(token, block=rows if by_last_token else rows - 1, by_last_token=by_last_token),
    )


def _taps(fields: Fields, layers: int) -> tuple[Tap, ...]:
    ids: Any = fields.values.get("target_layer_ids")
    if ids is None and isinstance(others := fields.values.get("aux_hidden_state_layer_ids"), list):
        ids = [each - 1 if type(each) is int else each for each in others]
    whole = isinstance(ids, list) and ids and all(type(each) is int and 0 <= each < layers for each in ids)
    if not whole or len(set(ids)) < len(ids):
        raise ModelError(f"the head reads layers {ids!r} of a model with {layers}, counted from 0", FOR_ANOTHER)
    said = fields.count("num_target_layers", layers)
    if said != layers:
        raise ModelError(f"the head's num_target_layers is {said}, and the model has {layers}", FOR_ANOTHER)
    return tuple(ids)


ROW = HeadRow(
    "dflash",
    read,
    label="DFlash",
    what="the DFlash head",
    help="DFlash: a block of tokens from one pass, whose masks see each other and values of several of the target"
    " model's layers",
    length=15,
    mark=r"^hidden_norm\.",
    loop="context_block:ContextBlockDrafter",
    aliases=("draft-dflash",),
)
