"""Who computes what: every split of every row is somewhere, once, and memory for partial results is never exceeded."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from kernels.paged_attention.plan import Sizes, plan, shared_prefixes

SPLIT = 64


def sizes(slots: int = 1000, window: int = 0, programs: int = 6, tile_rows: int = 8) -> Sizes:
    return Sizes(tile_rows, 4, 2, SPLIT, programs, slots, window)


def computed(made, counts: list[int], starts: list[int], window: int = 0) -> None:
    """Of every row: each split it sees is in one item; partial ones have a slot of their own, and all are joined."""
    rows = [(sequence, start + i) for sequence, start in enumerate(starts) for i in range(counts[sequence])]
    seen: Counter = Counter()
    partial: dict[int, set[int]] = {}
    for first, count, _, begin, end, is_partial, *_ in made.items:
        for row in made.item_rows[first : first + count]:
            for split in range(begin // SPLIT, (end - 1) // SPLIT + 1):
                seen[int(row), split] += 1
                if is_partial:
                    partial.setdefault(int(row), set()).add(int(made.row_slots[row]) + split)
    for row, (_, place) in enumerate(rows):
        lowest = max(0, place + 1 - window) if window else 0
        for split in range(lowest // SPLIT, place // SPLIT + 1):
            assert seen[row, split] == 1, (row, split)
    assert max(seen.values()) == 1
    joined = {int(row): set(range(slot, slot + count)) for row, slot, count, _ in made.joins}
    assert joined == partial
    used = [slot for slots in joined.values() for slot in slots]
    assert len(used) == len(set(used))


@pytest.mark.parametrize("seed", range(40))
def test_every_split_of_every_row_is_computed_once(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(1, 12)
    counts = [draw.choice([1, 1, 1, 4, 9, 30]) for _ in range(count)]
    starts = [draw.choice([0, 10, 63, 64, 65, 200, 1000]) for _ in range(count)]
    firsts = [sum(counts[:i]) for i in range(count)]
    slots, window = draw.choice([0, 3, 20, 1000]), draw.choice([0, 0, 40, 100])
    common = [i for i in range(count) if starts[i] >= 2 * SPLIT and draw.random() < 0.7]
    shared = [(common, 2 * SPLIT)] if len(common) > 1 else []
    made = plan(sizes(slots, window), firsts, counts, starts, shared)
    computed(made, counts, starts, window)
    assert sum(int(join[2]) for join in made.joins) <= slots
    assert (np.diff(made.items[:, 4] - made.items[:, 3]) <= 0).all()
    # What Work reserves.
    assert len(made.items) <= sum(counts) + slots and len(made.item_rows) <= 2 * sum(counts)


def test_one_long_sequence_is_spread_over_the_programs() -> None:
    made = plan(sizes(), [0], [1], [SPLIT * 20 - 1])
    assert len(made.items) == 20 and made.items[:, 5].all() and len(made.joins) == 1


def test_many_sequences_of_a_length_are_not_split() -> None:
    made = plan(sizes(), list(range(32)), [1] * 32, [SPLIT * 4] * 32)
    assert len(made.items) == 32 and not made.items[:, 5].any() and len(made.joins) == 0


def test_an_empty_step_has_nothing_to_do() -> None:
    made = plan(sizes(), [], [], [])
    assert len(made.items) == 0 and len(made.joins) == 0


def test_sequences_that_begin_with_the_same_pages_are_found_with_what_they_share_in_whole_splits() -> None:
    tables = np.array([[1, 2, 3, 4, 5, 6], [9, 9, 9, 9, 9, 9], [1, 2, 3, 4, 7, 0], [1, 2, 3, 4, 5, 8]], np.int32)
    starts = [90, 90, 70, 95]
    assert shared_prefixes(tables, starts, page_tokens=16, split=32) == [([0, 2, 3], 64)]
    # The one that has just begun shares nothing yet: its rows don't see the whole of the first split.
    assert shared_prefixes(tables, [90, 90, 20, 95], page_tokens=16, split=32) == [([0, 3], 64)]
    assert shared_prefixes(tables, starts, page_tokens=24, split=32) == []
