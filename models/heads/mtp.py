"""Multi-token prediction: a block trained with the model, which reads a token's embedding and the hidden value before
it, each normed and joined by a linear.

Layouts, inside the model's own folder or in one of its own: DeepSeek-V3 and GLM-4.5 (`model.layers.N.` with eh_proj,
enorm, hnorm and shared_head, N: the model's number of layers), ERNIE 4.5 (`model.mtp_*.0.`, whose norm before the head
is the model's last one), MiMo (`model.mtp_layers.0.`, whose linear reads the hidden value first) and Qwen3-Next and
Qwen3.5 (`mtp.`, whose layer has attention and no delta net). In the first one `draft_vocab_size` and `d2t`, as in
EAGLE-3's layout, say that the head has fewer tokens. Blocks with the next numbers draft the tokens behind the first
one's; Qwen's has none.

The hidden value is the model's behind its last norm, but MiMo's before it. What the next pass reads is the block's own
value behind the norm before the head.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from itertools import count, takewhile

from models import deepseek_v3, ernie4_5, glm4_moe, qwen3_next
from models.config import Fields
from models.errors import ModelError
from models.heads.fields import FOR_ANOTHER, check_sizes, draft_vocabulary, shared_with
from models.heads.form import Form, plain_layers
from models.heads.head import Head
from models.heads.row import HeadRow
from models.layers.dense import dense_layer, read_sizes
from models.spec import Fused, Layer, Linear, Network, Norm, Part
from models.taps import FINAL, Tap

MIMO = "model.mtp_layers.0."
QWEN = "mtp."


def read(fields: Fields, names: Collection[str], target: Network) -> Head:
    check_sizes(fields, target)
    layers = len(target.layers)
    layouts = (
        ("model.layers.{}.eh_proj.weight", layers, _deepseek),
        ("model.mtp_linear_proj.{}.weight", 0, _ernie),
        ("model.mtp_layers.{}.input_proj.weight", 0, _mimo),
    )
    for mark, first, of_block in layouts:
        blocks = [of_block(fields, names, target, number) for number in _numbers(mark, first, names)]
        if blocks:
            return dataclasses.replace(blocks[0], more=tuple(blocks[1:]))
    if f"{QWEN}fc.weight" in names:
        return _qwen(fields, names, target)
    known = (f"model.layers.{layers}.eh_proj", "model.mtp_linear_proj.0", f"{MIMO}input_proj", f"{QWEN}fc")
    raise ModelError(f"the folder has no MTP block: none of {', '.join(known)}", FOR_ANOTHER)


def _numbers(mark: str, first: int, names: Collection[str]) -> list[int]:
    """Of the blocks whose tensor `mark` there is, one behind the other."""
    return [*takewhile(lambda number: mark.format(number) in names, count(first))]


def _deepseek(fields: Fields, names: Collection[str], target: Network, number: int) -> Head:
    name = f"model.layers.{number}."
    follows: Tap = FINAL
    if f"{name}self_attn.kv_a_proj_with_mqa.weight" in names:
        layer = deepseek_v3.sparse_layer(fields, name)
    elif f"{name}mlp.gate.weight" in names:
        layer = glm4_moe.sparse_layer(fields, name)
    else:
        # Only `specmesh train-drafter` makes these, which trains them on their own value before the norm.
        layer, follows = _dense_layer(fields, name), 0
    epsilon = layer.mlp_norm.epsilon
    hidden = target.hidden_size
    own, id_offsets = draft_vocabulary(fields, names, target)
    network = Network(
        vocab_size=target.vocab_size,
        hidden_size=hidden,
        embedding=f"{name}embed_tokens.weight",
        layers=(layer,),
        norm=Norm(f"{name}shared_head.norm", hidden, epsilon),
        head=Linear((Part(f"{name}shared_head.head", own),), hidden),
        max_context=target.max_context,
        eos_token_ids=target.eos_token_ids,
        stored_dtype=fields.stored_dtype(),
        entry=Fused(
            Linear((Part(f"{name}eh_proj", hidden),), 2 * hidden),
            Norm(f"{name}enorm", hidden, epsilon),
            Norm(f"{name}hnorm", hidden, epsilon),
        ),
    )
    shared = shared_with(target, names, network.embedding, f"{name}shared_head.head")
    return Head(network, taps=(FINAL,), follows=follows, id_offsets=id_offsets, shared=shared)


def _ernie(fields: Fields, names: Collection[str], target: Network, number: int) -> Head:
    fields = fields.with_defaults(ernie4_5.DEFAULTS)
    hidden = target.hidden_size
    layer = _dense_layer(fields, f"model.mtp_block.{number}.", interleaved=True)
    epsilon = layer.mlp_norm.epsilon
    embedding, head = "model.embed_tokens.weight", "lm_head"
    network = dataclasses.replace(
        target,
        embedding=embedding,
        layers=(layer,),
        head=Linear((Part(head, target.vocab_size),), hidden),
        entry=Fused(
            Linear((Part(f"model.mtp_linear_proj.{number}", hidden),), 2 * hidden),
            Norm(f"model.mtp_emb_norm.{number}", hidden, epsilon),
            Norm(f"model.mtp_hidden_norm.{number}", hidden, epsilon),
        ),
    )
    shared = shared_with(target, names, embedding, head, target.norm)
    return Head(network, taps=(FINAL,), follows=FINAL, shared=shared)


def _mimo(fields: Fields, names: Collection[str], target: Network, number: int) -> Head:
    sizes, hidden, name = read_sizes(fields), target.hidden_size, f"model.mtp_layers.{number}."
    biased = f"{name}self_attn.q_proj.bias" in names
    network = dataclasses.replace(
        target,
        embedding="model.embed_tokens.weight",
        layers=(dense_layer(sizes, fields.count("intermediate_size"), name, qkv_bias=biased),),
        norm=Norm(f"{name}final_layernorm", hidden, sizes.epsilon),
        head=Linear((Part("lm_head", target.vocab_size),), hidden),
        entry=Fused(
            Linear((Part(f"{name}input_proj", hidden),), 2 * hidden),
            Norm(f"{name}token_layernorm", hidden, sizes.epsilon),
            Norm(f"{name}hidden_layernorm", hidden, sizes.epsilon),
            hidden_first=True,
        ),
    )
    shared = shared_with(target, names, network.embedding, "lm_head")
    return Head(network, taps=(len(target.layers) - 1,), follows=FINAL, shared=shared)


def _qwen(fields: Fields, names: Collection[str], target: Network) -> Head:
    layer = qwen3_next.attention_layer(fields, f"{QWEN}layers.0.", sparse=f"{QWEN}layers.0.mlp.gate.weight" in names)
    hidden, epsilon = target.hidden_size, layer.mlp_norm.epsilon

    def norm(name: str) -> Norm:
        return Norm(f"{QWEN}{name}", hidden, epsilon, plus_one=True)

    network = dataclasses.replace(
        target,
        embedding="model.embed_tokens.weight",
        layers=(layer,),
        norm=norm("norm"),
        head=Linear((Part("lm_head", target.vocab_size),), hidden),
        entry=Fused(
            Linear((Part(f"{QWEN}fc", hidden),), 2 * hidden),
            norm("pre_fc_norm_embedding"),
            norm("pre_fc_norm_hidden"),
        ),
    )
    shared = shared_with(target, names, network.embedding, "lm_head")
    return Head(network, taps=(FINAL,), follows=FINAL, shared=shared)


def _dense_layer(fields: Fields, name: str, interleaved: bool = False) -> Layer:
    sizes = read_sizes(fields, interleaved=interleaved)
    biased = fields.flag("attention_bias") or fields.flag("use_bias")
    return dense_layer(
        sizes, fields.count("intermediate_size"), name, qkv_bias=biased, output_bias=biased,
        mlp_bias=fields.flag("use_bias"),
    )  # fmt: skip


def form(network: Network, vocabulary: int) -> Form:
    """In DeepSeek-V3's layout, with a plain layer. The output head is written where its vocabulary is smaller."""
    name = f"model.layers.{len(network.layers)}."
    config = plain_layers(network, len(network.layers)) | {
        "architectures": ["DeepSeekMTPModel"], "model_type": "deepseek_mtp", "num_nextn_predict_layers": 1,
    }  # fmt: skip
    if vocabulary == network.vocab_size:
        return Form(config, (f"{name}eh_proj.weight",))
    names = (f"{name}eh_proj.weight", f"{name}shared_head.head.weight", "d2t")
    return Form(config | {"draft_vocab_size": vocabulary}, names)


ROW = HeadRow(
    "mtp",
    read,
    label="MTP",
    what="the multi-token prediction block",
    help="Multi-token prediction: the block that the model was trained with, inside its own folder or in another",
    length=3,
    mark=r"\.eh_proj\.|mtp_linear_proj\.|\.mtp_layers\.|mtp\.fc\.",
    aliases=(
        "deepseek_mtp", "ernie_mtp", "glm4_moe_mtp", "mimo_mtp", "qwen3_next_mtp", "qwen3_5_mtp", "nextn", "draft-mtp",
    ),
    with_model=True,
    loop="mtp_blocks:MtpDrafter",
    form=form,
)
