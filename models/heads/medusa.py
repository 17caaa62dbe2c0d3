"""Medusa's heads: models/heads/residual.py has the picture.

Layouts: the authors' (`I.J.linear`, `I.N`, with or without `medusa_head.`) and vLLM's (`blocks.I.layers.J`,
`lm_heads.I`, `token_map`).
"""

from __future__ import annotations

from collections.abc import Collection

from models.config import Fields
from models.heads.fields import check_sizes, named
from models.heads.form import Form
from models.heads.residual import ResidualBlock, ResidualHead, ResidualHeads, linear_named, shared_head, vocabulary_of
from models.heads.row import RESIDUAL, HeadRow
from models.spec import Network


def read(fields: Fields, names: Collection[str], target: Network) -> ResidualHeads:
    check_sizes(fields, target)
    heads = _count(fields, "medusa_num_heads", "num_heads")
    blocks = _count(fields, "medusa_num_layers", "num_hidden_layers")
    vocabulary, token_ids = vocabulary_of(fields, names, target)
    vllm = any(name.endswith("blocks.0.layers.0.weight") for name in names)
    start = named(names, "medusa_heads.", "medusa_head.", "blocks.", "0.")
    start = start if start.startswith("medusa") else ""
    one_head, hidden = vllm and fields.flag("original_lm_head"), target.hidden_size
    found = []
    for head in range(heads):
        linears = (f"{start}blocks.{head}.layers.{j}" if vllm else f"{start}{head}.{j}.linear" for j in range(blocks))
        last = f"{start}lm_heads.{0 if one_head else head}" if vllm else f"{start}{head}.{blocks}"
        blocks_of = tuple(ResidualBlock(linear_named(name, hidden, hidden, names)) for name in linears)
        found.append(ResidualHead(blocks_of, linear_named(last, vocabulary, hidden, names)))
    return ResidualHeads(tuple(found), False, token_ids, shared_head(one_head, found, names, target))


def _count(fields: Fields, *spellings: str) -> int:
    name = next((each for each in spellings if fields.given(each)), spellings[0])
    return fields.count(name, limit=64)


def form(network: Network, vocabulary: int) -> Form:
    """In vLLM's layout: a block for each of the next tokens, before one output head."""
    config = {
        "architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": network.hidden_size, "num_heads": 4,
        "num_hidden_layers": 1, "vocab_size": network.vocab_size, "truncated_vocab_size": vocabulary,
        "original_lm_head": True,
    }  # fmt: skip
    return Form(config, ("blocks.0.layers.0.weight", "lm_heads.0.weight", "token_map"))


ROW = HeadRow(
    "medusa",
    read,
    label="Medusa",
    what="the Medusa heads",
    help="Medusa: a small head for each of the next tokens, all reading the target model's last hidden value",
    length=4,
    mark=r"medusa_heads?\.|blocks\.0\.layers\.|0\.0\.linear\.weight",
    loop=RESIDUAL,
    form=form,
)
