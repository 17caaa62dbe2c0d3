"""DSpark: DFlash's layers (models/heads/dflash.py), and a Markov head that ties the tokens of a block to each other: to
the logits of a token comes a row of `markov_w1`, of the token before it, times `markov_w2`.

Layout, that of the authors: DFlash's tensors, `markov_head.markov_w1`, `markov_head.markov_w2`. The row of the text's
last token gives the first draft token, unless `sample_from_anchor` is false. What `confidence_head` says isn't read:
a draft token's confidence is its probability.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from models.config import Fields
from models.heads.dflash import head_of, merged
from models.heads.head import Head, Markov
from models.heads.row import HeadRow
from models.spec import Linear, Network, Part


def read(fields: Fields, names: Collection[str], target: Network) -> Head:
    fields = merged(fields)
    speculators = fields.given("aux_hidden_state_layer_ids")
    head = head_of(fields, names, target, by_last_token=fields.flag("sample_from_anchor", not speculators))
    linear = Linear((Part("markov_head.markov_w2", head.output.outputs),), fields.count("markov_rank"))
    return dataclasses.replace(head, markov=Markov("markov_head.markov_w1.weight", linear))


ROW = HeadRow(
    "dspark",
    read,
    label="DSpark",
    what="the DSpark head",
    help="DSpark: DFlash's block, whose tokens are chosen one by one with regard to the token before",
    length=7,
    mark=r"^markov_head\.",
    loop="context_block:ContextBlockDrafter",
)
