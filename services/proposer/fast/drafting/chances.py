"""Measured acceptance rates of draft tokens, compiled: the cells of plain/rates.py, which says what they mean, are
rows of a table."""

from __future__ import annotations

import numpy as np

from services.proposer.native import Doubles, loop
from services.proposer.plain import rates
from services.proposer.plain.rates import (
    CORRECTION_WEIGHT,
    COUNT_PRIOR,
    DECAY,
    HIGH_SHARE,
    HIGHEST_SHARE,
    LENGTH_STEPS,
    PRIOR_WEIGHT,
    RATE_STEPS,
    SHARE_STEPS,
    TOKEN_CELLS,
)

OWN, SHARED, STORE, CORPUS, PREDICTION, NGRAM = map(rates.SOURCES.index, rates.SOURCES)
SOURCES, SHARES = len(rates.SOURCES), SHARE_STEPS + 2
STEPS = len(LENGTH_STEPS) + 1
SURENESS = len(rates.SURENESS_STEPS) + 2
_LESS_SURE, _SURER = rates.SURENESS_STEPS
# Where each kind of cells begins.
AGREEMENT_AT = SOURCES * STEPS * SHARES
TOKENS_AT = AGREEMENT_AT + RATE_STEPS * SURENESS * SURENESS
LASTS_AT = TOKENS_AT + TOKEN_CELLS * RATE_STEPS
CELLS = LASTS_AT + TOKEN_CELLS * RATE_STEPS
# A cell's words.
ACCEPTED, SEEN = range(2)
CELL_WORDS = 2


def _priors() -> Doubles:
    by_source = [
        rates.RateCell("source", source, step, share).prior()
        for source in rates.SOURCES for step in range(STEPS) for share in range(SHARES)
    ]  # fmt: skip
    by_grade = [rates.RateCell("agreement", "", grade).prior() for grade in range(RATE_STEPS)]
    return np.concatenate([by_source, np.repeat(by_grade, SURENESS * SURENESS), np.tile(by_grade, 2 * TOKEN_CELLS)])


PRIORS = _priors()


@loop
def counted(times: int, of: int) -> float:
    """The share of a token that followed `times` of `of` occurrences."""
    return times / (of + COUNT_PRIOR)


@loop
def cell_of(source: int, length: int, share: float) -> int:
    step = 0
    while step < STEPS - 1 and LENGTH_STEPS[step] < length:
        step += 1
    if share > HIGH_SHARE:
        return (source * STEPS + step) * SHARES + SHARE_STEPS + (1 if share > HIGHEST_SHARE else 0)
    return (source * STEPS + step) * SHARES + min(SHARE_STEPS - 1, max(0, int(share * SHARE_STEPS)))


@loop
def _grade(rate: float) -> int:
    return min(RATE_STEPS - 1, int(rate * RATE_STEPS))


@loop
def _how_sure(rate: float) -> int:
    if rate < _LESS_SURE:
        return 1 if rate > 0 else 0
    return 3 if rate >= _SURER else 2


@loop
def cell_of_agreement(surest: float, same: float, other: float) -> int:
    return AGREEMENT_AT + (_grade(surest) * SURENESS + _how_sure(same)) * SURENESS + _how_sure(other)  # type: ignore[no-any-return]


@loop
def cell_of_token(token: int, rate: float) -> int:
    return TOKENS_AT + token % TOKEN_CELLS * RATE_STEPS + _grade(rate)  # type: ignore[no-any-return]


@loop
def cell_of_last(token: int, rate: float) -> int:
    return LASTS_AT + token % TOKEN_CELLS * RATE_STEPS + _grade(rate)  # type: ignore[no-any-return]


@loop
def rate_of(table: Doubles, cell: int) -> float:
    return (table[cell, ACCEPTED] + PRIOR_WEIGHT * PRIORS[cell]) / (table[cell, SEEN] + PRIOR_WEIGHT)  # type: ignore[no-any-return]


@loop
def corrected(table: Doubles, cell: int, rate: float) -> float:
    return rate + CORRECTION_WEIGHT * (rate_of(table, cell) - rate)  # type: ignore[no-any-return]


@loop
def seen(table: Doubles, cell: int, was_accepted: bool) -> None:
    table[cell, ACCEPTED] = table[cell, ACCEPTED] * DECAY + was_accepted
    table[cell, SEEN] = table[cell, SEEN] * DECAY + 1
