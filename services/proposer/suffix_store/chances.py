"""How often tokens stood that were guessed like this one: the compiled side of calibration. Knows neither texts nor how
guesses are made.

A cell holds the chance that such a token stands when all before it do, and the decaying counts it is made of. What one
source says has a cell by who it is, about how long the context was, and about how large the share was of the times the
context was followed by the token. What all say together has one by how sure the surest is, and how sure others are of
the same, and of something else. That chance is corrected by how it was with this token, and with what stands before
it: behind some, texts are harder to guess. calibration.py lays the tables out and says what is believed before
anything was seen.
"""

from __future__ import annotations

import numpy as np

from services.proposer.suffix_store.native import Floats, loop

# Who guesses. The order is that of preference among equal scores.
OWN, SHARED, STORE, CORPUS, PREDICTION, NGRAM = range(6)
SOURCES = 6
# Cells of a source; the last two of its shares are a great many times, and nearly all of them.
LENGTHS, SHARES = 9, 12
OF_SOURCES = SOURCES * LENGTHS * SHARES
# Cells of all together: how sure the surest is, how sure another is of the same, and of something else.
GRADES, SURE = 20, 4
OF_VIEWS = GRADES * SURE * SURE
# Cells of tokens, which share them by chance, and as many of tokens before.
TOKENS = 128
OF_TOKENS = TOKENS * GRADES
VIEWS_AT = OF_SOURCES
TOKENS_AT = VIEWS_AT + OF_VIEWS
LASTS_AT = TOKENS_AT + OF_TOKENS
CELLS = LASTS_AT + OF_TOKENS
# A cell's words.
CHANCE, STOOD, SEEN = range(3)
CELL_WORDS = 3
# So many tokens' worth what was believed before; what was seen loses so much of its weight with each new token.
BELIEF, KEPT = 3.0, 0.995
# A context that occurred twice and was followed by the same token twice says more than one that occurred once.
_DOUBT = 0.5
# From so large a share on, and so many times, tenths of shares are too coarse.
_MANY, _MOST = 0.94, 0.98
_TENTHS = 10
# How much of the way to what is so with the token a chance is corrected.
_CORRECTED = 0.5
_MIX, _SPREAD = np.uint64(0x9E3779B97F4A7C15), np.uint64(64 - 7)
assert TOKENS == 1 << 7


@loop
def counted(times: int, of: int) -> float:
    """The share of a token that came so many times of so many."""
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
def cell_of_views(surest: float, same: float, other: float) -> int:
    """0: nobody says so."""
    return VIEWS_AT + (_grade(surest) * SURE + _how_sure(same)) * SURE + _how_sure(other)  # type: ignore[no-any-return]


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
