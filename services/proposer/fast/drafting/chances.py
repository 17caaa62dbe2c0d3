"""Measured acceptance rates of draft tokens, compiled: the cells of proposer/rates.py, which says what they mean, are
rows of a table."""

from __future__ import annotations

import numpy as np

from services.proposer.native import Doubles, loop
from services.proposer.plain import rates
from services.proposer.plain.rates import (
    CORRECTED,
    DOUBT,
    GRADES,
    KEPT,
    LENGTHS,
    MANY,
    MOST,
    PRIOR_WEIGHT,
    TENTHS,
    TOKENS,
)

OWN, SHARED, STORE, CORPUS, PREDICTION, NGRAM = map(rates.SOURCES.index, rates.SOURCES)
SOURCES, SHARES = len(rates.SOURCES), TENTHS + 2
STEPS = len(LENGTHS) + 1
SURE = len(rates.SURE) + 2
_LESS_SURE, _SURER = rates.SURE
# Where each kind of cells begins.
AGREEMENT_AT = SOURCES * STEPS * SHARES
TOKENS_AT = AGREEMENT_AT + GRADES * SURE * SURE
LASTS_AT = TOKENS_AT + TOKENS * GRADES
CELLS = LASTS_AT + TOKENS * GRADES
# A cell's words.
ACCEPTED, SEEN = range(2)
CELL_WORDS = 2


def _priors() -> Doubles:
    by_source = [
        rates.RateCell("source", source, step, share).prior()
        for source in rates.SOURCES for step in range(STEPS) for share in range(SHARES)
    ]  # fmt: skip
    by_grade = [rates.RateCell("agreement", "", grade).prior() for grade in range(GRADES)]
    return np.concatenate([by_source, np.repeat(by_grade, SURE * SURE), np.tile(by_grade, 2 * TOKENS)])


PRIORS = _priors()


@loop
def counted(times: int, of: int) -> float:
    """The share of a token that followed `times` of `of` occurrences."""
    return times / (of + DOUBT)


@loop
def cell_of(source: int, length: int, share: float) -> int:
    step = 0
    while step < STEPS - 1 and LENGTHS[step] < length:
        step += 1
    if share > MANY:
        return (source * STEPS + step) * SHARES + TENTHS + (1 if share > MOST else 0)
    return (source * STEPS + step) * SHARES + min(TENTHS - 1, max(0, int(share * TENTHS)))


@loop
def _grade(rate: float) -> int:
    return min(GRADES - 1, int(rate * GRADES))


@loop
def _how_sure(rate: float) -> int:
    if rate < _LESS_SURE:
        return 1 if rate > 0 else 0
    return 3 if rate >= _SURER else 2


@loop
def cell_of_agreement(surest: float, same: float, other: float) -> int:
    return AGREEMENT_AT + (_grade(surest) * SURE + _how_sure(same)) * SURE + _how_sure(other)  # type: ignore[no-any-return]


@loop
def cell_of_token(token: int, rate: float) -> int:
    return TOKENS_AT + token % TOKENS * GRADES + _grade(rate)  # type: ignore[no-any-return]


@loop
def cell_of_last(token: int, rate: float) -> int:
    return LASTS_AT + token % TOKENS * GRADES + _grade(rate)  # type: ignore[no-any-return]


@loop
def rate_of(table: Doubles, cell: int) -> float:
    return (table[cell, ACCEPTED] + PRIOR_WEIGHT * PRIORS[cell]) / (table[cell, SEEN] + PRIOR_WEIGHT)  # type: ignore[no-any-return]


@loop
def corrected(table: Doubles, cell: int, rate: float) -> float:
    return rate + CORRECTED * (rate_of(table, cell) - rate)  # type: ignore[no-any-return]


@loop
def seen(table: Doubles, cell: int, was_accepted: bool) -> None:
    table[cell, ACCEPTED] = table[cell, ACCEPTED] * KEPT + was_accepted
    table[cell, SEEN] = table[cell, SEEN] * KEPT + 1
