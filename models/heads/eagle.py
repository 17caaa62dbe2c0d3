"""EAGLE of the first generation: a linear joins the token's embedding with the target's last hidden value, then one or
more layers, the first without its first norm. The target's head reads the result as it is.

Layouts: `fc`, `layers.N.*`, `embed_tokens` (the authors'); speculators name the first one `fusion_fc`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from models.config import Fields
from models.heads.fields import check_sizes, named, shared_with
from models.heads.head import Head
from models.heads.row import HeadRow
from models.layers.dense import dense_layer, read_sizes
from models.spec import Fused, Linear, Network, Norm, Part
from models.taps import FINAL


def read(fields: Fields, names: Collection[str], target: Network) -> Head:
    check_sizes(fields, target)
    sizes = read_sizes(fields)
    biased, wide = fields.flag("attention_bias"), fields.count("intermediate_size")
    names_of = (f"layers.{index}." for index in range(sizes.layers))
    layers = [dense_layer(sizes, wide, name, qkv_bias=biased, output_bias=biased) for name in names_of]
    layers[0] = dataclasses.replace(layers[0], attention_norm=None)
    fc = named(names, "fc.", "fusion_fc.").removesuffix(".")
    normed = fields.flag("add_para_norm")
    entry = Fused(
        Linear((Part(fc, sizes.hidden),), 2 * sizes.hidden, bias=f"{fc}.bias" in names),
        Norm("embedding_layernorm", sizes.hidden, sizes.epsilon) if normed else None,
        Norm("hidden_states_layernorm", sizes.hidden, sizes.epsilon) if normed else None,
    )
    network = Network(
        vocab_size=target.vocab_size,
        hidden_size=sizes.hidden,
        embedding="embed_tokens.weight",
        layers=tuple(layers),
        norm=None,
        head=Linear((Part("lm_head", target.vocab_size),), sizes.hidden),
        max_context=target.max_context,
        eos_token_ids=target.eos_token_ids,
        stored_dtype=fields.stored_dtype(),
        entry=entry,
    )
    return Head(
        network=network,
        taps=(FINAL,),
        follows=sizes.layers - 1,
        shared=shared_with(target, names, "embed_tokens.weight", "lm_head"),
    )


ROW = HeadRow(
    "eagle",
    read,
    label="EAGLE",
    what="the EAGLE head",
    help="EAGLE: a layer trained to continue the target model's last hidden value",
    length=5,
    # One of the names of an MTP block ends alike.
    mark=r"(?<!mtp\.)fc\.weight",
)
