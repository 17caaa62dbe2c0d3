"""Drafts as they travel from a proposer to a worker: the drafts of a batch in columns (DraftColumns), and back.

Columns from outside are data: those that don't fit each other raise ValueError. Whether a draft suits its text, and
whether its numbers are probabilities, is not checked here.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from itertools import repeat
from typing import NamedTuple

import numpy as np

from services.api.drafter import Draft
from services.api.messages import DraftColumns

assert sys.byteorder == "little", "numbers travel as they are in memory"

TOKEN_BYTES, CONFIDENCE_BYTES, PROB_BYTES = 4, 8, 4
# In the column `chances`, of tokens whose draft gives no confidence.
_NOT_GIVEN = -1.0
_CHAIN: list[int] = []


class PlacedDraft(NamedTuple):
    """A draft for a sequence whose text, what was assumed to follow it included, has `length` tokens."""

    sequence_id: int
    length: int
    draft: Draft


def pack(drafts: Iterable[PlacedDraft]) -> DraftColumns:
    """Raises OverflowError for what can't be a token id, and ValueError for probabilities of another shape than
    [tokens, vocabulary]."""
    drafts = list(drafts)
    tokens, chances = array("i"), array("d")
    for _, _, draft in drafts:
        tokens.extend(draft.tokens)
        given = len(draft.confidence) == len(draft.tokens)
        chances.extend(draft.confidence if given else [_NOT_GIVEN] * len(draft.tokens))
    rows = [_rows(draft) for _, _, draft in drafts] if any(each.draft.probs is not None for each in drafts) else []
    return DraftColumns(
        sequence_ids=[each.sequence_id for each in drafts],
        committed=[each.length for each in drafts],
        lengths=[len(each.draft.tokens) for each in drafts],
        sources=[each.draft.source for each in drafts],
        match_lengths=[each.draft.match_length for each in drafts],
        parents=[each.draft.parents for each in drafts] if any(each.draft.parents for each in drafts) else [],
        tokens=tokens.tobytes(),
        chances=chances.tobytes(),
        vocabularies=[0 if each is None else each.shape[1] for each in rows],
        probs=b"".join(each.tobytes() for each in rows if each is not None),
    )


def unpack(columns: DraftColumns) -> list[PlacedDraft]:
    """Raises ValueError when the columns don't fit each other. `probs` of a draft is a read-only view of the column."""
    if (
        len(columns.tokens) % TOKEN_BYTES
        or len(columns.chances) != len(columns.tokens) // TOKEN_BYTES * CONFIDENCE_BYTES
    ):
        raise ValueError("tokens and chances differ in length")
    tokens, chances = array("i", columns.tokens).tolist(), array("d", columns.chances).tolist()
    count_of_drafts = len(columns.lengths)
    all_parents = columns.parents or repeat(_CHAIN, count_of_drafts)
    all_rows = _cut_probs(columns.probs, columns.lengths, columns.vocabularies) or repeat(None, count_of_drafts)
    found, at = [], 0
    for sequence_id, length, count, source, match_length, parents, rows in zip(
        columns.sequence_ids, columns.committed, columns.lengths, columns.sources, columns.match_lengths, all_parents,
        all_rows, strict=True,
    ):  # fmt: skip
        if count < 0 or at + count > len(tokens):
            raise ValueError("a draft is longer than its tokens")
        after = at + count
        confidence = chances[at:after]
        if confidence and confidence[0] == _NOT_GIVEN:
            confidence = []
        draft = Draft(tokens[at:after], source, match_length, parents, confidence, rows)
        found.append(PlacedDraft(sequence_id, length, draft))
        at = after
    if at != len(tokens):
        raise ValueError("more tokens than drafts")
    return found


def _rows(draft: Draft) -> np.ndarray | None:
    if draft.probs is None:
        return None
    rows = np.ascontiguousarray(draft.probs, np.float32)
    if rows.ndim != 2 or len(rows) != len(draft.tokens) or not rows.shape[1]:
        raise ValueError(f"probabilities of shape {rows.shape} for {len(draft.tokens)} tokens")
    return rows


def _cut_probs(column: bytes, lengths: list[int], vocabularies: list[int]) -> list[np.ndarray | None]:
    """Of each draft its rows; [] where no draft has any."""
    if len(vocabularies) not in (0, len(lengths)) or min([*vocabularies, *lengths], default=0) < 0:
        raise ValueError("vocabularies of another number of drafts")
    sizes = [length * vocabulary for length, vocabulary in zip(lengths, vocabularies, strict=False)]
    if PROB_BYTES * sum(sizes) != len(column):
        raise ValueError("probabilities of another number of tokens")
    whole, rows, at = np.frombuffer(column, np.float32), [], 0
    for length, vocabulary, size in zip(lengths, vocabularies, sizes, strict=False):
        rows.append(whole[at : at + size].reshape(length, vocabulary) if vocabulary else None)
        at += size
    return rows
