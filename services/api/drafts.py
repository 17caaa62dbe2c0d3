"""Drafts as they travel from a proposer to a target, and as those see them who use them. Values; knows neither side.

On the way they are columns (DraftColumns): a proposer's compiled call leaves its guesses behind
each other in memory, and they go out as they lie there. What comes in is a stranger's: columns that don't fit each
other are refused.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from services.api.messages import DraftColumns

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


class Drafted(Protocol):
    """What is laid out in columns."""

    @property
    def tokens(self) -> list[int]: ...
    @property
    def chances(self) -> list[float]: ...


def laid_out(drafts: Iterable[Drafted]) -> tuple[bytes, bytes]:
    """(tokens, chances) of all, one behind the other. Chances are told of all tokens of a draft, or of none. Raises
    OverflowError for what can't be a token."""
    tokens, chances = array("i"), array("d")
    for draft in drafts:
        tokens.extend(draft.tokens)
        told = len(draft.chances) == len(draft.tokens)
        chances.extend(draft.chances if told else [UNTOLD] * len(draft.tokens))
    return tokens.tobytes(), chances.tobytes()


def cut(tokens: bytes, chances: bytes, lengths: Sequence[int]) -> list[tuple[list[int], list[float]]]:
    """Drafts of these lengths out of what was laid out. Raises ValueError when it isn't of such drafts."""
    if len(tokens) % TOKEN_BYTES or len(chances) != len(tokens) // TOKEN_BYTES * CHANCE_BYTES:
        raise ValueError("tokens and chances aren't of one length")
    all_tokens, all_chances = array("i", tokens).tolist(), array("d", chances).tolist()
    drafts, at = [], 0
    for length in lengths:
        if length < 0 or at + length > len(all_tokens):
            raise ValueError("a draft is longer than what was sent of it")
        after = at + length
        told = all_chances[at:after]
        drafts.append((all_tokens[at:after], told if told and told[0] != UNTOLD else []))
        at = after
    if at != len(all_tokens):
        raise ValueError("more tokens than drafts")
    return drafts


def chances_in(column: bytes) -> list[float]:
    return array("d", column).tolist()


def packed(items: Iterable[DraftItem]) -> DraftColumns:
    items = list(items)
    tokens, chances = laid_out(items)
    return DraftColumns(
        sequence_ids=[item.sequence_id for item in items],
        committed=[item.committed for item in items],
        lengths=[len(item.tokens) for item in items],
        sources=[item.source for item in items],
        match_lengths=[item.match_length for item in items],
        parents=[item.parents for item in items] if any(item.parents for item in items) else [],
        tokens=tokens,
        chances=chances,
    )


def unpacked(columns: DraftColumns) -> list[DraftItem]:
    """Raises ValueError when the columns don't fit each other."""
    if not columns.sequence_ids:
        return []
    return [
        DraftItem(sequence_id, committed, tokens, source, match_length, parents, chances)
        for sequence_id, committed, source, match_length, parents, (tokens, chances) in zip(
            columns.sequence_ids, columns.committed, columns.sources, columns.match_lengths,
            columns.parents or [_CHAIN] * len(columns.lengths), cut(columns.tokens, columns.chances, columns.lengths),
            strict=True,
        )
    ]  # fmt: skip
