"""Prior acceptance rates, before anything was measured: by source, length of the context, and the share of the
context's occurrences that the token followed. The compiled step (drafting/chances.py) updates them in a table for each
namespace, so that no namespace changes the rates of another.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.proposer.fast.drafting.chances import (
    AGREEMENT_AT,
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
    cell_of,
)

Table = npt.NDArray[np.float32]

# By context length: 1, 2, 3, 4, up to 6, 10, 20, 40, and longer (chances.cell_of).
_BY_LENGTH = (0.35, 0.5, 0.62, 0.7, 0.78, 0.85, 0.92, 0.95, 0.97)
# A caller that sends a prediction expects the answer to be close to it.
_PREDICTED = (0.7, 0.7, 0.75, 0.85, 0.9, 0.93, 0.96, 0.97, 0.98)
# The last occurrence is a slightly worse guess than the most frequent one.
_RECENT = 0.95


def new_table() -> Table:
    return _PRIORS.copy()


def chance(table: Table, source: int, length: int, share: float) -> float:
    return float(table[cell_of(source, length, share), CHANCE])


def _priors() -> Table:
    table = np.zeros((CELLS, CELL_WORDS), np.float32)
    share = np.array([*((np.arange(10) + 0.5) / 10), 0.96, 0.99])
    # Two of two occurrences is stronger evidence than one of one, and both than one of two.
    by_share = np.minimum(1.0, 0.2 * share + (share + 0.05) / 0.8)
    chances = table[:OF_SOURCES, CHANCE].reshape(SOURCES, LENGTHS, SHARES)
    for source in range(SOURCES):
        by_length = np.array(_PREDICTED if source == PREDICTION else _BY_LENGTH)
        chances[source] = by_length[:, None] * by_share * (_RECENT if source == NGRAM else 1.0)
    # At first the rate is what the surest source says.
    sure = (np.arange(GRADES) + 0.5) / GRADES
    table[AGREEMENT_AT:TOKENS_AT, CHANCE] = np.repeat(sure, SURE * SURE)
    table[TOKENS_AT:, CHANCE] = np.tile(sure, 2 * TOKENS)
    return table


_PRIORS = _priors()
_PRIORS.flags.writeable = False
