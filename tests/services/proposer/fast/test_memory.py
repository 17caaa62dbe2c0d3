"""Tables' memory: zeros at first, and kept as it grows."""

from __future__ import annotations

import random

import numpy as np
import pytest

from services.proposer.fast.automaton.memory import Memory


@pytest.mark.parametrize("kind", [np.int32, [("one", np.int32), ("other", np.int64)]])
def test_memory_grows_and_keeps_its_records(kind: object) -> None:
    table, chance, kept = Memory(kind), random.Random(4), {}  # type: ignore[arg-type]
    for rows in (10, 100, 10_000, 50, 500_000, 700_001, 1_300_003):
        table.lay_out(rows)
        assert table.rows >= rows
        for _ in range(200):
            row, value = chance.randrange(rows), chance.randrange(1, 1 << 30)
            table.records(rows)[row] = value
            kept[row] = value
        found = table.records(table.rows).copy()
        numbers = found if found.dtype == np.int32 else found["other"]
        assert {row: numbers[row] for row in kept} == kept
        assert np.count_nonzero(numbers) == len(kept)
    table.close()
    assert table.rows == 0
