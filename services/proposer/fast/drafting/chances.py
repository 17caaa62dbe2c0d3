"""Measured acceptance rates of tokens by how they were predicted: the compiled side of calibration. Knows neither texts
nor how drafts are made.

A cell holds the rate at which such tokens were accepted when all before them were, and the decaying counts behind it. A
source's prediction has a cell by source, context length (in steps) and share of the context's occurrences (in steps).
The prediction of all together has one by the highest rate, and by how sure other sources are of the same token and of
another. That rate is corrected by those of the token itself and of the token before it. calibration.py has the priors.
"""

from __future__ import annotations

import numpy as np

from services.proposer.fast.native import Floats, loop

# Sources, in order of preference among equal scores.
OWN, SHARED, STORE, CORPUS, PREDICTION, NGRAM = range(6)
SOURCES = 6
# Cells of a source; the last two steps of shares are those near 1.
LENGTHS, SHARES = 9, 12
OF_SOURCES = SOURCES * LENGTHS * SHARES
# Cells of all together: the highest rate, and how sure others are of the same token and of another.
GRADES, SURE = 20, 4
OF_AGREEMENT = GRADES * SURE * SURE
# Cells of tokens, by hash, and as many of the tokens before.
TOKENS = 128
OF_TOKENS = TOKENS * GRADES
AGREEMENT_AT = OF_SOURCES
TOKENS_AT = AGREEMENT_AT + OF_AGREEMENT
LASTS_AT = TOKENS_AT + OF_TOKENS
CELLS = LASTS_AT + OF_TOKENS
# A cell's words.
CHANCE, STOOD, SEEN = range(3)
CELL_WORDS = 3
# Weight of the prior, in tokens; and the share of its weight that a count keeps with each new token.
BELIEF, KEPT = 3.0, 0.995
# Added to the number of occurrences: two of two is stronger evidence than one of one.
_DOUBT = 0.5
# From this share on, steps of a tenth are too coarse.
_MANY, _MOST = 0.94, 0.98
_TENTHS = 10
# How far a rate is moved towards that of the token.
_CORRECTED = 0.5
_MIX, _SPREAD = np.uint64(0x9E3779B97F4A7C15), np.uint64(64 - 7)
assert TOKENS == 1 << 7


@loop
def counted(times: int, of: int) -> float:
    """The share of a token that followed `times` of `of` occurrences."""
    return times / (of + _DOUBT)


@loop
def cell_of(source: int, length: int, share: float) -> int:
    if length <= 4:
        at = max(length, 1) - 1
    elif length <= 6:
        at = 4
    elif length <= 10:
        at = 5
    elif length <= 20:
        at = 6
    else:
        at = 7 if length <= 40 else 8
    if share > _MANY:
        return (source * LENGTHS + at) * SHARES + (11 if share > _MOST else 10)
    return (source * LENGTHS + at) * SHARES + min(_TENTHS - 1, max(0, int(share * _TENTHS)))


@loop
def _grade(chance: float) -> int:
    return min(GRADES - 1, int(chance * GRADES))


@loop
def _how_sure(chance: float) -> int:
    if chance < 0.3:
        return 1 if chance > 0 else 0
    return 3 if chance >= 0.6 else 2


@loop
def cell_of_agreement(surest: float, same: float, other: float) -> int:
    """Of 0: no source predicts it."""
    return AGREEMENT_AT + (_grade(surest) * SURE + _how_sure(same)) * SURE + _how_sure(other)  # type: ignore[no-any-return]


@loop
def _of_token(token: int) -> int:
    return np.int64(np.uint64(token) * _MIX >> _SPREAD)  # type: ignore[return-value]


@loop
def cell_of_token(token: int, chance: float) -> int:
    return TOKENS_AT + _of_token(token) * GRADES + _grade(chance)  # type: ignore[no-any-return]


@loop
def cell_of_last(token: int, chance: float) -> int:
    return LASTS_AT + _of_token(token) * GRADES + _grade(chance)  # type: ignore[no-any-return]


@loop
def corrected(table: Floats, cell: int, chance: float) -> float:
    return chance + _CORRECTED * (table[cell, CHANCE] - chance)  # type: ignore[no-any-return]


@loop
def seen(table: Floats, cell: int, stood: bool) -> None:
    """One more of the cell's tokens stood, or didn't. Beliefs aren't kept apart: they are what the chance was."""
    before = (table[cell, CHANCE] * (table[cell, SEEN] + BELIEF) - table[cell, STOOD]) / BELIEF
    table[cell, STOOD] = table[cell, STOOD] * KEPT + stood
    table[cell, SEEN] = table[cell, SEEN] * KEPT + 1
    table[cell, CHANCE] = (table[cell, STOOD] + BELIEF * before) / (table[cell, SEEN] + BELIEF)
