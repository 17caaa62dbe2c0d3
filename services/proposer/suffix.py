"""Suffix decoding: what most often followed the contexts that a text ends with, while it is probable enough.

It searches the request's own text and the learned text of its namespace. The draft with the best score, the expected
number of accepted tokens, wins; among equal scores that of the longer context, and that of the own text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from services.api.drafter import Drafter
from services.api.settings import Settings
from services.proposer.index import SuffixIndex
from services.proposer.plain.automaton import Reader, State, shortened
from services.proposer.plain.guess import DraftRule, Guess
from services.proposer.plain.rates import CORPUS, OWN, SHARED, STORE
from services.proposer.plain.segment_search import search
from services.proposer.plain.texts import Followed
from services.proposer.text_drafter import TextDrafter


class SuffixDrafter(TextDrafter):
    name: ClassVar[str] = "suffix"
    sources: ClassVar[tuple[str, ...]] = (OWN, SHARED, STORE, CORPUS)

    @classmethod
    def of(cls, settings: Settings, index: SuffixIndex, others: Mapping[str, Drafter]) -> Drafter:
        return cls(index, DraftRule.of(settings))

    def guess(self, followed: Followed, ahead: Sequence[int], longest: int) -> Guess:
        return max(self._guesses(followed, ahead, longest), key=lambda guess: guess.score)

    def _guesses(self, followed: Followed, ahead: Sequence[int], longest: int) -> Iterator[Guess]:
        """In order of preference."""
        limit = followed.options.depth
        yield replace(most_frequent(followed.own(ahead), limit, longest, self.rule), source=OWN)
        if (reader := followed.shared()) is not None:
            yield replace(most_frequent(reader.behind(ahead), limit, longest, self.rule), source=SHARED)
        context = followed.context(ahead)
        for segment in followed.segments():
            yield replace(search(segment, context, longest, self.rule), source=STORE)
        for corpus, segment in followed.corpora():
            yield replace(search(segment, context, longest, self.rule), source=f"{CORPUS}:{corpus}")


def most_frequent(reader: Reader, limit: int, longest: int, rule: DraftRule) -> Guess:
    """The best draft of all contexts of up to `limit` tokens. Contexts of one state have been followed by the same
    tokens as often, and the longest of them has the largest budget."""
    best = Guess()
    for state, length in reader.contexts(limit):
        guess = walk(state, length, limit, rule.budget(length, longest), rule.least)
        if guess.score > best.score:
            best = guess
    return best


def walk(state: State, length: int, limit: int, budget: int, least: float) -> Guess:
    """The most frequent tokens behind the context, while all of them are as probable as `least`. Beyond `limit` the
    context is its own last `limit` tokens."""
    tokens: list[int] = []
    shares: list[float] = []
    probability = 1.0
    while len(tokens) < budget and state.best_count:
        share = state.best_count / state.count
        probability *= share
        if probability < least:
            break
        tokens.append(state.best)
        shares.append(share)
        state = state.next[state.best]
        if length + len(tokens) > limit:
            state = shortened(state, limit)
    return Guess(tokens, shares, length)
