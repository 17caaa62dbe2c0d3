"""What models/batch.py makes, stretch by stretch in numpy: the reference for its compiled loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from models.batch import TILE_ROWS, Batch, Stretch, _tables
from models.branches import Branch


def make_batch(stretches: Sequence[Stretch], page_tokens: int) -> Batch:
    made = _Making(page_tokens)
    for stretch in stretches:
        if stretch.parents:
            made.add_tree(stretch)
        else:
            made.add_chain(stretch)
    return made.batch(max(len(stretch.pages) for stretch in stretches))


class _Making:
    def __init__(self, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._rows = 0
        self._tables: list[np.ndarray] = []
        self._tokens: list[Sequence[int]] = []
        self._positions: list[np.ndarray] = []
        self._slots: list[np.ndarray] = []
        self._tiles: list[tuple[int, int, int]] = []
        self._work: list[int] = []
        self._wanted: list[np.ndarray] = []
        self._states_only: list[np.ndarray] = []
        self._forks: list[int] = []
        self._also_rows: list[int] = []
        self._also_slots: list[int] = []
        self._feature_rows: list[np.ndarray] = []
        self._states: list[int] = []

    def add_chain(self, stretch: Stretch) -> None:
        count = len(stretch.tokens)
        wanted = self._states_only if stretch.states_only else self._wanted
        wanted.append(np.arange(self._rows + stretch.logits_from, self._rows + count))
        at = np.arange(stretch.start, stretch.start + count, dtype=np.int32)
        self._feature_rows.append(np.arange(self._rows, self._rows + count, dtype=np.int32))
        self._add(stretch, stretch.tokens, at, np.asarray(stretch.pages, np.int32))

    def _add(self, stretch: Stretch, tokens: Sequence[int], at: np.ndarray, table: np.ndarray) -> None:
        count, start = len(tokens), int(at[0])
        self._states += [stretch.state, start + count if stretch.settled == -1 else stretch.settled]
        for row in range(0, count, TILE_ROWS):
            rows = min(TILE_ROWS, count - row)
            self._tiles.append((len(self._tables), self._rows + row, rows))
            self._work.append(rows * ((start + row) // self._page_tokens + 1))
        self._tables.append(table)
        self._tokens.append(tokens)
        self._positions.append(at)
        self._slots.append(_slots(table, at, self._page_tokens))
        self._rows += count

    def add_tree(self, stretch: Stretch) -> None:
        """Its rows by branches; logits and features come in the order of its tokens."""
        first = self._rows
        main = np.asarray(stretch.pages, np.int32)
        place = np.empty(len(stretch.tokens), np.int64)
        for branch, table in _tables(stretch, self._page_tokens):
            place[branch.rows] = np.arange(self._rows, self._rows + len(branch.rows))
            self._feature_rows.append(np.asarray(branch.rows, np.int32) + first)
            if branch.parent >= 0:
                self._fork(stretch, branch, table, main, place)
            tokens = [stretch.tokens[row] for row in branch.rows]
            self._add(stretch, tokens, _places(stretch, branch), table)
        self._wanted.append(place[stretch.logits_from :])

    def _fork(self, stretch: Stretch, branch: Branch, table: np.ndarray, main: np.ndarray, place: np.ndarray) -> None:
        """Fill a branch's first page up to the branch: the end of the text, and the draft tokens it follows."""
        first = stretch.start + branch.depth
        page = first // self._page_tokens
        begins = page * self._page_tokens
        if begins < stretch.start:
            self._forks += [int(main[page]), int(table[page])]
        row = branch.rows[0]
        for position in range(first - 1, max(begins, stretch.start) - 1, -1):
            row = stretch.parents[row - 1] + 1
            self._also_rows.append(int(place[row]))
            self._also_slots.append(int(table[page]) * self._page_tokens + position - begins)

    def batch(self, width: int) -> Batch:
        tables = np.zeros((len(self._tables), width), np.int32)
        for index, table in enumerate(self._tables):
            tables[index, : len(table)] = table
        return Batch(
            tokens=np.fromiter((token for tokens in self._tokens for token in tokens), np.int32, self._rows),
            positions=np.concatenate(self._positions),
            slots=np.concatenate(self._slots),
            tables=tables.reshape(-1),
            table_width=width,
            tiles=np.asarray(self._tiles, np.int32).reshape(-1),
            tile_work=np.asarray(self._work, np.int64),
            wanted=np.concatenate([*self._wanted, *self._states_only]),
            forks=np.asarray(self._forks, np.int32),
            also_rows=np.asarray(self._also_rows, np.int32),
            also_slots=np.asarray(self._also_slots, np.int64),
            feature_rows=np.concatenate(self._feature_rows),
            states=np.array(self._states, np.int32),
            states_only=sum(map(len, self._states_only)),
        )


def _places(stretch: Stretch, branch: Branch) -> np.ndarray:
    first = stretch.start + branch.depth
    return np.arange(first, first + len(branch.rows), dtype=np.int32)


def _slots(table: np.ndarray, at: np.ndarray, page_tokens: int) -> np.ndarray:
    return table[at // page_tokens].astype(np.int64) * page_tokens + at % page_tokens
