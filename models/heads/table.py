"""The one table of heads: each is a file of this folder with a ROW. No torch."""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib import import_module

from models.heads.row import HeadRow

# A head that has all tensors of another one is behind it.
NAMES = (
    "draft_model",
    "mtp",
    "eagle",
    "eagle3",
    "block",
    "medusa",
    "hydra",
    "dflash",
    "dspark",
)
HEADS: dict[str, HeadRow] = {name: import_module(f"models.heads.{name}").ROW for name in NAMES}
# Any whole model.
(DRAFT_MODEL,) = (row.name for row in HEADS.values() if not row.mark)
TRAINED = tuple(sorted(row.name for row in HEADS.values() if row.form))


def kind_of(names: Collection[str]) -> str:
    """The kind of a head, by the names of its tensors; "": none is known by them."""
    marked = {row.name: re.compile(row.mark) for row in HEADS.values() if row.mark}
    found = [kind for kind, mark in marked.items() if any(map(mark.search, names))]
    return found[-1] if found else ""
