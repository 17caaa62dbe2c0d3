"""The rows of one forward pass, as flat arrays. Knows nothing of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

# Rows of a sequence that attention takes at once: they share the conversion of a page.
TILE_ROWS = 16


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring tokens of one sequence at positions start.. ; `pages` covers them and all before."""

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]
    logits_from: int  # logits are wanted for tokens logits_from..


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one sequence stand together, in the order of their positions."""

    tokens: np.ndarray  # [R] int32
    positions: np.ndarray  # [R] int32
    slots: np.ndarray  # [R] int64: page · page_tokens + offset of the row's key and value
    tables: np.ndarray  # [S · table_width] int32: pages of each sequence
    table_width: int
    tiles: np.ndarray  # [T · 3] int32: sequence, first row, rows
    tile_work: np.ndarray  # [T] int64: pages looked at by the rows of a tile
    wanted: np.ndarray  # [W] int64: rows whose logits are returned


def make_batch(stretches: Sequence[Stretch], page_tokens: int) -> Batch:
    width = max(len(stretch.pages) for stretch in stretches)
    tables = np.zeros((len(stretches), width), np.int32)
    positions, slots, tiles, work, wanted = [], [], [], [], []
    firsts = [0, *accumulate(len(stretch.tokens) for stretch in stretches)]
    for index, (stretch, first) in enumerate(zip(stretches, firsts, strict=False)):
        count = len(stretch.tokens)
        table = np.asarray(stretch.pages, np.int32)
        tables[index, : len(table)] = table
        at = np.arange(stretch.start, stretch.start + count, dtype=np.int32)
        positions.append(at)
        slots.append(table[at // page_tokens].astype(np.int64) * page_tokens + at % page_tokens)
        for row in range(0, count, TILE_ROWS):
            rows = min(TILE_ROWS, count - row)
            tiles.append((index, first + row, rows))
            work.append(rows * ((stretch.start + row) // page_tokens + 1))
        wanted.append(np.arange(first + stretch.logits_from, first + count))
    return Batch(
        tokens=np.fromiter((token for stretch in stretches for token in stretch.tokens), np.int32, firsts[-1]),
        positions=np.concatenate(positions),
        slots=np.concatenate(slots),
        tables=tables.reshape(-1),
        table_width=width,
        tiles=np.asarray(tiles, np.int32).reshape(-1),
        tile_work=np.asarray(work, np.int64),
        wanted=np.concatenate(wanted),
    )
