"""What `auto` makes of its sources' predictions: a draft, and a record of all of them, by which rates are measured when
the text has gone on. fast/drafting/blending.py is the same, compiled.

A source is an automaton, which is asked again behind every token, or a line: a draft made beforehand, which counts as
long as the blended draft agrees with it. The rate of a token depends on whether other sources predict it, too, or
another one (rates.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from services.api.drafter import MAX_DRAFT_TOKENS
from services.proposer.plain.automaton import Reader
from services.proposer.plain.guess import Guess
from services.proposer.plain.rates import RateCell, SourceRates, counted, of_agreement, of_last, of_source, of_token

if TYPE_CHECKING:
    from services.proposer.plain.texts import Followed

# Contexts of an automaton that are asked, the longest first; a shorter one has to be surer by this factor.
MAX_CONTEXTS, SHORTER_FACTOR = 2, 1.1


@dataclass(slots=True)
class Prediction:
    token: int
    cell: RateCell
    rate: float


@dataclass(slots=True)
class AutomatonSource:
    source: str
    reader: Reader
    # One occurrence of the context is the text's own end, which nothing follows yet.
    at_end: bool
    matched: int = field(init=False)
    # Tokens of the draft that it was the surest of.
    led: int = 0

    def __post_init__(self) -> None:
        self.matched = self.reader.length

    def predict(self, rates: SourceRates, limit: int) -> Prediction | None:
        found, surest = None, 0.0
        contexts = ((state, length) for state, length in self.reader.contexts(limit) if state.best_count)
        for state, length in islice(contexts, MAX_CONTEXTS):
            share = counted(state.best_count, state.count - self.at_end)
            cell = of_source(self.source, length, share)
            rate = rates.rate(cell)
            if rate > surest:
                found, surest = Prediction(state.best, cell, rate), rate * SHORTER_FACTOR
        return found

    def advance(self, token: int) -> None:
        self.reader.read((token,))
        self.at_end = False


@dataclass(slots=True)
class Line:
    source: str
    tokens: list[int]
    cells: list[RateCell]
    matched: int
    led: int = 0
    at: int = 0

    @classmethod
    def of(cls, kind: str, source: str, guess: Guess) -> Line:
        cells = [of_source(kind, guess.matched + at, share) for at, share in enumerate(guess.shares)]
        return cls(source, guess.tokens, cells, guess.matched)

    def predict(self, rates: SourceRates, limit: int) -> Prediction | None:
        if self.at >= len(self.tokens):
            return None
        cell = self.cells[self.at]
        return Prediction(self.tokens[self.at], cell, rates.rate(cell))

    def advance(self, token: int) -> None:
        if self.at < len(self.tokens) and self.tokens[self.at] != token:
            self.tokens = []
        self.at += 1


@dataclass(slots=True)
class Record:
    """What every source predicted for each token of a draft. It counts up to and including the draft's first wrong
    token, and not at all before the text reaches it: the tokens ahead of it are only compared."""

    made_at: int
    ahead: list[int]
    # For each token: the draft's token, and (cell, token) of each that was predicted.
    entries: list[tuple[int, list[tuple[RateCell, int]]]] = field(default_factory=list)
    compared: int = 0

    def is_of_the_place_of(self, other: Record) -> bool:
        """A second request for the same place changes nothing: the first predictions count."""
        return (self.made_at, len(self.ahead)) == (other.made_at, len(other.ahead))


def compare(records: Iterable[Record], text: array[int], rates: SourceRates) -> None:
    """Compares the records with the text that followed, and measures the rates."""
    for record in records:
        expected = [*((token, []) for token in record.ahead), *record.entries] if record.entries else []
        for token, predictions in expected[record.compared : len(text) - record.made_at]:
            followed = text[record.made_at + record.compared]
            record.compared += 1
            for cell, predicted in predictions:
                rates.seen(cell, predicted == followed)
            if token != followed:
                record.entries = []
                break


def blend(
    sources: Sequence[AutomatonSource | Line], followed: Followed, record: Record, longest: int, least: float
) -> Guess:
    """As long as all tokens are accepted with a probability of at least `least`. All predictions go into the record,
    also those of the token that wasn't likely enough, or its rate would never change."""
    rates, text, ahead = followed.rates, followed.text.tokens, record.ahead
    last = ahead[-1] if ahead else text[-1] if text else -1
    tokens: list[int] = []
    shares: list[float] = []
    probability = 1.0
    while len(tokens) < longest:
        predictions = [source.predict(rates, followed.options.depth) for source in sources]
        found = [each for each in predictions if each is not None]
        if not found:
            break
        first = max(found, key=lambda each: each.rate)
        token = first.token
        same = max((each.rate for each in found if each is not first and each.token == token), default=0.0)
        other = max((each.rate for each in found if each.token != token), default=0.0)
        by_agreement = of_agreement(first.rate, same, other)
        share = rates.rate(by_agreement)
        by_token = of_token(token, share)
        share = rates.corrected(by_token, share)
        by_last = of_last(last, share)
        share = rates.corrected(by_last, share)
        if len(ahead) + len(tokens) < MAX_DRAFT_TOKENS:
            by_source = [(each.cell, each.token) for each in found]
            record.entries.append((token, [(cell, token) for cell in (by_agreement, by_token, by_last)] + by_source))
        probability *= share
        if probability < least:
            break
        tokens.append(token)
        shares.append(share)
        sources[predictions.index(first)].led += 1
        last = token
        for source in sources:
            source.advance(token)
    best = max(sources, key=lambda source: source.led)
    return Guess(tokens, shares, best.matched, best.source)
