"""Measured acceptance rates of draft tokens, by how they were predicted: what `auto` chooses by.

A cell counts tokens that were predicted alike: how many were seen, and how many of them were accepted when all before
them were. Older tokens count less. There are four kinds of cells:

    of_source       source, length of the context, share of the context's occurrences that the token followed
    of_agreement    the highest of these rates, and those of other sources for the same token and for another one
    of_token        that rate and the token; of_last: and the token before it

A rate is the share of accepted tokens, with a prior that weighs as much as a few tokens. fast/drafting/chances.py has
the same cells in a table. Knows neither texts nor how drafts are made.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

# Weight of the prior, in tokens; and the share of its weight that a count keeps with each new token.
PRIOR_WEIGHT, DECAY = 3.0, 0.995
# Sources, in order of preference among equal scores.
SOURCES = OWN, SHARED, STORE, CORPUS, PREDICTION, NGRAM = "suffix", "shared", "store", "corpus", "prediction", "ngram"
# Steps of context lengths: 1, 2, 3, 4, up to 6, 10, 20, 40, and longer.
LENGTH_STEPS = (1, 2, 3, 4, 6, 10, 20, 40)
# Steps of shares: tenths, but near 1 these are too coarse.
SHARE_STEPS, HIGH_SHARE, HIGHEST_SHARE = 10, 0.94, 0.98
# Steps of rates, and of how sure another source is.
RATE_STEPS = 20
SURENESS_STEPS = (0.3, 0.6)
# Tokens share cells.
TOKEN_CELLS = 128
# Added to the number of occurrences: two of two is stronger evidence than one of one.
COUNT_PRIOR = 0.5
# How far a rate is moved towards that of the token.
CORRECTION_WEIGHT = 0.5

# Priors by step of the context's length.
_BY_LENGTH = (0.35, 0.5, 0.62, 0.7, 0.78, 0.85, 0.92, 0.95, 0.97)
# A caller that sends a prediction expects the answer to be close to it.
_PREDICTED = (0.7, 0.7, 0.75, 0.85, 0.9, 0.93, 0.96, 0.97, 0.98)
# The last occurrence is a slightly worse guess than the most frequent one.
_RECENT = 0.95
# The middle of each step of shares.
_SHARES = (*((tenth + 0.5) / 10 for tenth in range(SHARE_STEPS)), 0.96, 0.99)
_NOTHING = (0.0, 0.0)


class RateCell(NamedTuple):
    kind: str
    # The source, or the token modulo TOKEN_CELLS.
    which: str | int
    # Steps of the context's length and of the share, or of the rates.
    first: int
    second: int = 0
    third: int = 0

    def prior(self) -> float:
        """The rate before anything was measured."""
        if self.kind != "source":
            return (self.first + 0.5) / RATE_STEPS
        by_length = _PREDICTED if self.which == PREDICTION else _BY_LENGTH
        share = _SHARES[self.second]
        # Two of two occurrences is stronger evidence than one of one, and both than one of two.
        by_share = min(1.0, 0.2 * share + (share + 0.05) / 0.8)
        return by_length[self.first] * by_share * (_RECENT if self.which == NGRAM else 1.0)


def counted(times: int, of: int) -> float:
    """The share of a token that followed `times` of `of` occurrences."""
    return times / (of + COUNT_PRIOR)


def of_source(source: str, length: int, share: float) -> RateCell:
    if share > HIGH_SHARE:
        step = SHARE_STEPS + (share > HIGHEST_SHARE)
    else:
        step = min(SHARE_STEPS - 1, max(0, int(share * SHARE_STEPS)))
    return RateCell("source", source, bisect_left(LENGTH_STEPS, length), step)


def of_agreement(surest: float, same: float, other: float) -> RateCell:
    return RateCell("agreement", "", _grade(surest), _how_sure(same), _how_sure(other))


def of_token(token: int, rate: float) -> RateCell:
    return RateCell("token", token % TOKEN_CELLS, _grade(rate))


def of_last(token: int, rate: float) -> RateCell:
    return RateCell("last", token % TOKEN_CELLS, _grade(rate))


def _grade(rate: float) -> int:
    return min(RATE_STEPS - 1, int(rate * RATE_STEPS))


def _how_sure(rate: float) -> int:
    """0: no source predicts it."""
    return 0 if rate <= 0 else 1 + (rate >= SURENESS_STEPS[0]) + (rate >= SURENESS_STEPS[1])


class SourceRates:
    """Of one namespace: rates shared by namespaces would tell a caller how predictable another one's texts are."""

    def __init__(self) -> None:
        # By cell: accepted tokens, and all that were seen.
        self._counts: dict[RateCell, tuple[float, float]] = {}

    def rate(self, cell: RateCell) -> float:
        accepted, seen = self._counts.get(cell, _NOTHING)
        return (accepted + PRIOR_WEIGHT * cell.prior()) / (seen + PRIOR_WEIGHT)

    def corrected(self, cell: RateCell, rate: float) -> float:
        return rate + CORRECTION_WEIGHT * (self.rate(cell) - rate)

    def seen(self, cell: RateCell, was_accepted: bool) -> None:
        accepted, seen = self._counts.get(cell, _NOTHING)
        self._counts[cell] = accepted * DECAY + was_accepted, seen * DECAY + 1

    def expected(self, cells: list[RateCell], least: float) -> float:
        """How many tokens of a line are expected to be accepted, until all of them are with less than `least`."""
        score, probability = 0.0, 1.0
        for cell in cells:
            probability *= self.rate(cell)
            if probability < least:
                break
            score += probability
        return score
