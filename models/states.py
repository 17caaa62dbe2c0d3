"""How far the states of sequences are: which rows each has seen for good, and which are kept to be run again. Knows no
values."""

from __future__ import annotations

import numpy as np

from models.batch import Batch


class States:
    """Of one network, or of one layer of it."""

    def __init__(self, count: int, longest_draft: int) -> None:
        self._longest_draft = longest_draft
        # Of each state: how many rows of its sequence it has seen, and how many there were.
        self._settled = [0] * count
        self._ends = [0] * count

    def follow(self, batch: Batch) -> np.ndarray:
        """The table of a batch that is run next (kernels/delta_rule/table.py)."""
        tiles = batch.tiles.reshape(-1, 3)
        firsts = tiles[np.searchsorted(tiles[:, 0], np.arange(len(batch.states) // 2)), 1].tolist()
        ends = [*firsts, len(batch.tokens)][1:]
        found = [
            self._go_on(first, end - first, state, int(batch.positions[first]), settled)
            for first, end, (state, settled) in zip(firsts, ends, batch.states.reshape(-1, 2).tolist(), strict=True)
        ]
        return np.array(found, np.int32)

    def copy(self, source: int, target: int) -> None:
        self._settled[target], self._ends[target] = self._settled[source], self._ends[source]

    def _go_on(self, first: int, count: int, state: int, start: int, settled: int) -> tuple[int, ...]:
        # From 0: another text, or the same one again after a preemption.
        begin, end = self._settled[state] if start else 0, start + count
        assert begin <= start <= max(begin, self._ends[state]), "a sequence goes on within what is kept of it"
        settled = max(begin, min(settled, end))
        assert end - settled <= self._longest_draft
        self._settled[state], self._ends[state] = settled, end
        return first, count, state, start, begin, settled
