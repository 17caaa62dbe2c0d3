"""A block drafter: EAGLE-3's network, trained to give a draft of k tokens in one pass over k rows. The first row reads
what EAGLE-3's does; the others read a mask instead of a token and its features.

Layout, that of P-EAGLE in vLLM: EAGLE-3's tensors, `mask_hidden` [1, width of the taps], and the id of the token whose
embedding the mask has (`ptd_token_id`, `pard_token` or `mask_token_id`). `block_size` is our own field: the longest
draft that was trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from models.config import Fields
from models.heads import eagle3
from models.heads.form import Form
from models.heads.head import Head, Mask
from models.heads.row import HeadRow
from models.spec import Network

TOKEN_FIELDS = ("ptd_token_id", "pard_token", "mask_token_id")
# Tokens of a draft.
TRAINED_BLOCK = 5


def read(fields: Fields, names: Collection[str], target: Network) -> Head:
    head = eagle3.read(fields, names, target)
    name = next((each for each in TOKEN_FIELDS if fields.given(each)), TOKEN_FIELDS[0])
    token = fields.count(name, limit=target.vocab_size - 1, least=0)
    block = fields.count("block_size", 0, limit=64, least=0)
    return dataclasses.replace(head, follows=None, mask=Mask(token, "mask_hidden", block))


def form(network: Network, vocabulary: int) -> Form:
    made = eagle3.form(network, vocabulary)
    # Any token does: the layer is told by the mask's hidden value.
    token = network.eos_token_ids[0] if network.eos_token_ids else 0
    said = {"parallel_drafting": True, TOKEN_FIELDS[0]: token, "block_size": TRAINED_BLOCK}
    return dataclasses.replace(made, config=made.config | said)


ROW = HeadRow(
    "block",
    read,
    label="block",
    what="the head that drafts a block in one pass",
    help="A block of tokens from one pass: EAGLE-3's layer, trained to fill masks behind the text",
    length=5,
    mark="mask_hidden",
    loop="block:BlockDrafter",
    form=form,
)
