"""What is believed of a guess before anything was seen: how likely a token stands, by who guessed it, how long its
context was, and what share of the times it followed that. What is seen then is learned in the compiled step
(suffix_store/chances.py), in a table for each namespace: nothing that one says changes the chances of another.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.proposer.suffix_store.chances import (
    CELL_WORDS,
    CELLS,
    CHANCE,
    GRADES,
    LENGTHS,
    NGRAM,
    OF_SOURCES,
    PREDICTION,
    SHARES,
    SOURCES,
    SURE,
    TOKENS,
    TOKENS_AT,
    VIEWS_AT,
    cell_of,
)

Table = npt.NDArray[np.float32]

# By the length of the context, as cell_of has it: 1, 2, 3, 4, up to 6, 10, 20, 40, and longer.
_BY_LENGTH = (0.35, 0.5, 0.62, 0.7, 0.78, 0.85, 0.92, 0.95, 0.97)
# Prediction is asked for by those who have one: it mostly begins like the answer.
_PREDICTED = (0.7, 0.7, 0.75, 0.85, 0.9, 0.93, 0.96, 0.97, 0.98)
# The last occurrence is a little worse a guess than the most frequent one.
_RECENT = 0.95


def new_table() -> Table:
    return _BELIEFS.copy()


def chance(table: Table, source: int, length: int, share: float) -> float:
    return float(table[cell_of(source, length, share), CHANCE])


def _beliefs() -> Table:
    table = np.zeros((CELLS, CELL_WORDS), np.float32)
    share = np.array([*((np.arange(10) + 0.5) / 10), 0.96, 0.99])
    # Twice the same of two says more than one of one, and both more than one of two.
    by_share = np.minimum(1.0, 0.2 * share + (share + 0.05) / 0.8)
    chances = table[:OF_SOURCES, CHANCE].reshape(SOURCES, LENGTHS, SHARES)
    for source in range(SOURCES):
        by_length = np.array(_PREDICTED if source == PREDICTION else _BY_LENGTH)
        chances[source] = by_length[:, None] * by_share * (_RECENT if source == NGRAM else 1.0)
    # Nobody knows better than the surest one yet.
    sure = (np.arange(GRADES) + 0.5) / GRADES
    table[VIEWS_AT:TOKENS_AT, CHANCE] = np.repeat(sure, SURE * SURE)
    table[TOKENS_AT:, CHANCE] = np.tile(sure, 2 * TOKENS)
    return table


_BELIEFS = _beliefs()
_BELIEFS.flags.writeable = False
