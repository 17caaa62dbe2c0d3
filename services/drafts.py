"""Drafts as they travel from a proposer to a target, and as those see them who use them. Values; knows neither side.

On the way they are columns (services/messages.py, DraftColumns): a proposer's compiled call leaves its guesses behind
each other in memory, and they go out as they lie there. What comes in is a stranger's: columns that don't fit each
other are refused.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import Any

import msgspec

from services.messages import DraftColumns

assert sys.byteorder == "little", "numbers travel as they lie in memory"

TOKEN_BYTES, CHANCE_BYTES = 4, 8
# Instead of a chance, where none is told.
UNTOLD = -1.0
_CHAIN: list[int] = []


class DraftItem(msgspec.Struct, frozen=True, gc=False):
    """A guess for what follows position `committed` (with `ahead` counted in, where the question had it). A chain when
    `parents` is empty. chances[i] is how probable the proposer thinks it is that tokens[i] stands when all before it
    do; empty: it doesn't say."""

    sequence_id: int
    committed: int
    tokens: list[int]
    source: str
    match_length: int = 0
    parents: list[int] = []
    chances: list[float] = []


def packed(items: Iterable[DraftItem]) -> DraftColumns:
    """Chances are told of all tokens of a draft, or of none. Raises OverflowError for what can't be a token."""
    items = list(items)
    tokens, chances = array("i"), array("d")
    for item in items:
        tokens.extend(item.tokens)
        chances.extend(item.chances if len(item.chances) == len(item.tokens) else [UNTOLD] * len(item.tokens))
    return DraftColumns(
        sequence_ids=[item.sequence_id for item in items],
        committed=[item.committed for item in items],
        lengths=[len(item.tokens) for item in items],
        sources=[item.source for item in items],
        match_lengths=[item.match_length for item in items],
        parents=[item.parents for item in items] if any(item.parents for item in items) else [],
        tokens=tokens.tobytes(),
        chances=chances.tobytes(),
    )


def unpacked(columns: DraftColumns) -> list[DraftItem]:
    """Raises ValueError when the columns don't fit each other."""
    if not columns.sequence_ids:
        return []
    tokens, chances = _numbers(columns)
    parents = columns.parents or [_CHAIN] * len(columns.lengths)
    items, at = [], 0
    for sequence_id, committed, length, source, match_length, above in zip(
        columns.sequence_ids, columns.committed, columns.lengths, columns.sources, columns.match_lengths, parents,
        strict=True,
    ):  # fmt: skip
        if length < 0 or at + length > len(tokens):
            raise ValueError("a draft is longer than what was sent of it")
        after = at + length
        told = chances[at:after]
        items.append(
            DraftItem(
                sequence_id, committed, tokens[at:after], source, match_length, above,
                told if length and told[0] != UNTOLD else [],
            )
        )
        at = after
    if at != len(tokens):
        raise ValueError("more tokens than drafts")
    return items


def _numbers(columns: DraftColumns) -> tuple[list[int], list[float]]:
    if len(columns.tokens) % TOKEN_BYTES or len(columns.chances) != len(columns.tokens) // TOKEN_BYTES * CHANCE_BYTES:
        raise ValueError("tokens and chances aren't of one length")
    return tokens_in(columns.tokens), chances_in(columns.chances)


def tokens_in(column: bytes) -> list[int]:
    return memoryview(column).cast("i").tolist()


def chances_in(column: bytes) -> list[float]:
    numbers: Any = memoryview(column).cast("d")
    return numbers.tolist()  # type: ignore[no-any-return]
