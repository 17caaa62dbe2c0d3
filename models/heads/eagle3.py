"""EAGLE-3: a decoder layer that reads the embedding beside a mix of a low, a middle and a high layer of the target.
Some heads have plain layers after it.

Layouts: `midlayer.*` (the authors', SpecForge) or `layers.0.*` (speculators, vLLM), `layers.1.*` ..., `fc`,
`norm`, `lm_head` over the draft vocabulary, `d2t` (offsets to the target's ids), `t2d`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from itertools import count
from typing import Any

from models.config import Fields
from models.errors import ModelError
from models.heads.fields import FOR_ANOTHER, check_sizes, draft_vocabulary, flat, named, shared_with
from models.heads.form import Form, plain_layers
from models.heads.head import Head
from models.heads.row import HeadRow
from models.layers.dense import dense_layer, read_sizes
from models.spec import Attention, Beside, Layer, Linear, Network, Norm, Part
from models.taps import Tap


def read(fields: Fields, names: Collection[str], target: Network) -> Head:
    fields = flat(fields)
    check_sizes(fields, target)
    sizes = read_sizes(fields)
    layer, before = _layer(fields, named(names, "midlayer.", "layers.0."))
    layers = (layer, *_plain_layers(fields, names))
    own, id_offsets = draft_vocabulary(fields, names, target)
    network = Network(
        vocab_size=target.vocab_size,
        hidden_size=sizes.hidden,
        embedding="embed_tokens.weight",
        layers=layers,
        norm=Norm("norm", sizes.hidden, sizes.epsilon),
        head=Linear((Part("lm_head", own),), sizes.hidden),
        max_context=target.max_context,
        eos_token_ids=target.eos_token_ids,
        stored_dtype=fields.stored_dtype(),
        entry=before,
    )
    taps = _taps(fields, len(target.layers))
    return Head(
        network=network,
        taps=taps,
        combine=Linear((Part("fc", sizes.hidden),), len(taps) * target.hidden_size),
        follows=len(layers) - 1,
        id_offsets=id_offsets,
        shared=shared_with(target, names, "embed_tokens.weight", "lm_head"),
    )


def _layer(fields: Fields, name: str) -> tuple[Layer, Beside]:
    sizes, biased = read_sizes(fields), fields.flag("attention_bias")
    plain = dense_layer(
        sizes, fields.count("intermediate_size"), name, qkv_bias=biased, output_bias=biased,
        mlp_bias=fields.flag("mlp_bias"),
    )  # fmt: skip
    assert isinstance(plain.attention, Attention) and plain.attention_norm is not None
    # Its input is twice as wide: the embedding, then the hidden value.
    qkv = dataclasses.replace(plain.attention.qkv, inputs=2 * sizes.hidden)
    hidden_norm = Norm(f"{name}hidden_norm", sizes.hidden, sizes.epsilon)
    normed_first = fields.flag("norm_before_residual")
    layer = dataclasses.replace(
        plain,
        attention_norm=None if normed_first else hidden_norm,
        attention=dataclasses.replace(plain.attention, qkv=qkv),
    )
    return layer, Beside(plain.attention_norm, hidden_norm if normed_first else None)


def _plain_layers(fields: Fields, names: Collection[str]) -> Iterator[Layer]:
    """Those after the first one, which are as in any decoder."""
    sizes, biased, wide = read_sizes(fields), fields.flag("attention_bias"), fields.count("intermediate_size")
    for index in count(1):
        name = f"layers.{index}."
        if f"{name}input_layernorm.weight" not in names:
            return
        yield dense_layer(sizes, wide, name, qkv_bias=biased, output_bias=biased, mlp_bias=fields.flag("mlp_bias"))


def _taps(fields: Fields, layers: int) -> tuple[Tap, ...]:
    """The config counts layers from 1 (hidden_states); without it the authors' choice."""
    section = fields.values.get("eagle_config")
    ids: Any = section.get("eagle_aux_hidden_state_layer_ids") if isinstance(section, dict) else None
    ids = ids or fields.values.get("eagle_aux_hidden_state_layer_ids") or [2, layers // 2, layers - 3]
    whole = isinstance(ids, list) and all(isinstance(i, int) and 1 <= i <= layers for i in ids)
    if not whole or len(set(ids)) < len(ids):
        raise ModelError(f"the head reads layers {ids!r} of a model with {layers}", FOR_ANOTHER)
    return tuple(i - 1 for i in ids)


def form(network: Network, vocabulary: int) -> Form:
    count = len(network.layers)
    taps = dict.fromkeys((min(1, count - 1), count // 2 - 1, max(0, count - 4)))
    config = plain_layers(network) | {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "draft_vocab_size": vocabulary,
        "tie_word_embeddings": False, "eagle_aux_hidden_state_layer_ids": [tap + 1 for tap in taps],
    }  # fmt: skip
    return Form(config, ("lm_head.weight", "d2t", "t2d"), trains_output=True)


ROW = HeadRow(
    "eagle3",
    read,
    label="EAGLE-3",
    what="the EAGLE-3 head",
    help="EAGLE-3: a layer trained to continue a mix of the target model's low, middle and high layers",
    length=5,
    mark=r"\.hidden_norm\.",
    aliases=("draft-eagle3",),
    form=form,
)
