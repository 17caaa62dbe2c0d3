"""A limit of an answer's reasoning: once it has that many tokens, only the marker that closes it may follow.

    <think> t1 t2 t3 | </think> the answer        a limit of 3
                       forced

Where a text stands is a function of its tokens alone, so drafts, batches, preemption and another attempt change
nothing. Markers are looked for in the text, as the streamer does (streamer/agents/reasoning.py): a model may write them
in other tokens than the tokenizer. Only what is forced is written in the tokenizer's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from services.api.drafter import NO_DRAFT, Draft
from services.api.sampling import ReasoningLimit
from services.worker.grammar.drafting import SOURCE
from services.worker.grammar.state import RowMasks

if TYPE_CHECKING:
    from llguidance import LLTokenizer

log = logging.getLogger("specmesh.worker")

NOTHING = -1  # in place of a forced id


class Phase(Enum):
    START = auto()  # the opening marker may follow
    INSIDE = auto()
    OVER = auto()


class Place(NamedTuple):
    """Where a text stands. `tokens`: of the reasoning; `end`: the end of the text, in which markers are looked for;
    `closing`: how many of the forced tokens it ends with."""

    phase: Phase
    tokens: int = 0
    end: bytes = b""
    closing: int = 0


OVER = Place(Phase.OVER)


class LimitedReasoning:
    """Of one sequence."""

    __slots__ = ("_closer", "_forced", "_limit", "_opener", "_size", "_vocabulary", "place")

    def __init__(self, limit: ReasoningLimit, vocabulary: LLTokenizer) -> None:
        self._size = vocabulary.vocab_size
        self._limit = limit.tokens
        self._opener, self._closer = limit.opener.encode(), limit.closer.encode()
        self._forced: list[int] = vocabulary.tokenize_str(limit.closer)
        self._vocabulary = vocabulary
        self.place = Place(Phase.INSIDE if limit.inside else Phase.START)

    def commit(self, tokens: list[int]) -> None:
        """The text continues with these."""
        for token in tokens:
            if self.place.phase is Phase.OVER:
                return
            self.place = self._after(self.place, token)

    def within(self, draft: Draft, longest: int) -> Draft:
        """The draft up to the limit, then what is forced there. Trees, and what was drawn from probabilities, stay as
        they are: the masks hold them."""
        if draft.parents or draft.probs is not None or not self._near(longest):
            return draft
        place, tokens = self.place, draft.tokens
        kept = 0
        while kept < len(tokens) and self._follows(place, tokens[kept]):
            place = self._after(place, tokens[kept])
            kept += 1
        forced = self._forced[place.closing :] if self._at_limit(place) else []
        forced = forced[: max(0, longest - kept)]
        if kept == len(tokens) and not forced:
            return draft
        if not kept:
            return Draft(forced, SOURCE, confidence=[1.0] * len(forced)) if forced else NO_DRAFT
        confidence = [*draft.confidence[:kept], *[1.0] * len(forced)] if draft.confidence else draft.confidence
        return Draft(tokens[:kept] + forced, draft.source, draft.match_length, confidence=confidence)

    def masks(
        self, draft: list[int], parents: list[int], grammar: RowMasks | None, allowed: np.ndarray | None
    ) -> RowMasks | None:
        """The rows' masks, with one id alone where it is forced; None: no row has one. Without a grammar they begin as
        `allowed`, if the request allows some ids only: the limit comes before it. A grammar that doesn't allow the id
        yet, in the middle of a character, comes before the limit."""
        if not self._near(len(draft)):
            return grammar
        forced = self._forced_by_row(draft, parents)
        if grammar is not None:
            forced = [
                token if grammar.known[row] and grammar.allows(row, token) else NOTHING
                for row, token in enumerate(forced)
            ]
        if all(token == NOTHING for token in forced):
            return grammar
        found = self._free(len(forced), allowed) if grammar is None else _copied(grammar)
        for row, token in enumerate(forced):
            if token != NOTHING:
                found.bits[row] = 0
                found.bits[row, token >> 5] = 1 << (token & 31)
                found.known[row] = True
        for index, token in enumerate(draft):
            row = (parents[index] if parents else index - 1) + 1
            found.follows[index] &= forced[row] in (NOTHING, token)
        return found

    def _free(self, rows: int, allowed: np.ndarray | None) -> RowMasks:
        found = RowMasks(
            np.zeros((rows, -(-self._size // 32)), np.uint32),
            np.full(rows, allowed is not None),
            np.ones(rows - 1, np.bool_),
        )
        if allowed is not None:
            found.bits[:] = allowed.view(np.uint32)
        return found

    def _near(self, tokens: int) -> bool:
        """Whether the reasoning can reach its limit with this number of further tokens."""
        return self.place.phase is not Phase.OVER and self.place.tokens + tokens >= self._limit

    def _forced_by_row(self, draft: list[int], parents: list[int]) -> list[int]:
        places = [self.place]
        for index, token in enumerate(draft):
            places.append(self._after(places[(parents[index] if parents else index - 1) + 1], token))
        return [self._forced[each.closing] if self._at_limit(each) else NOTHING for each in places]

    def _bytes_of(self, token: int) -> bytes:
        """A draft may hold what is no id."""
        return self._vocabulary.decode_bytes([token]) if 0 <= token < self._size else b""

    def _follows(self, place: Place, token: int) -> bool:
        return not self._at_limit(place) or token == self._forced[place.closing]

    def _at_limit(self, place: Place) -> bool:
        return place.phase is Phase.INSIDE and place.tokens >= self._limit

    def _after(self, place: Place, token: int) -> Place:
        if place.phase is Phase.OVER:
            return place
        text = place.end + self._bytes_of(token)
        if place.phase is Phase.START:
            text = text.lstrip()
            if not text.startswith(self._opener):
                return Place(Phase.START, end=text) if self._opener.startswith(text) else OVER
            place, text = Place(Phase.INSIDE, -1), text[len(self._opener) :]
        if self._closer in text:
            return OVER
        closing = place.closing + 1 if token == self._forced[place.closing] else int(token == self._forced[0])
        if closing == len(self._forced):
            return OVER
        return Place(Phase.INSIDE, place.tokens + 1, text[1 - len(self._closer) :], closing)


def _copied(masks: RowMasks) -> RowMasks:
    return RowMasks(masks.bits.copy(), masks.known.copy(), masks.follows.copy())


def drafts_to_limits(
    limits: Mapping[int, LimitedReasoning], drafts: Mapping[int, Draft], longest: Mapping[int, int]
) -> dict[int, Draft]:
    """The drafts of these sequences, each of at most `longest` tokens. A fault costs the draft, not the sequence."""
    found = {}
    for sequence_id, limit in limits.items():
        try:
            found[sequence_id] = limit.within(drafts.get(sequence_id, NO_DRAFT), longest[sequence_id])
        # A panic of the library's is no Exception.
        except BaseException:
            log.exception("a limit of reasoning can't draft")
            found[sequence_id] = NO_DRAFT
    return found
