"""Who computes what: every split of every row is somewhere, once, and memory for partial results is never exceeded. The
plan is that of plan_in_numpy.py."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import fields

import numpy as np
import pytest

from kernels.paged_attention import plan as plans
from kernels.paged_attention.plan import Sizes, plan, shared_prefixes
from tests.kernels.paged_attention import plan_in_numpy

SPLIT, PAGE_TOKENS = 64, 16


def sizes(slots: int = 1000, window: int = 0, programs: int = 6, tile_rows: int = 8) -> Sizes:
    return Sizes(tile_rows, 4, 2, SPLIT, programs, slots, window)


def computed(made, counts: list[int], starts: list[int], window: int = 0) -> None:
    """Of every row: each split it sees is in one item; partial ones have a slot of their own, and all are joined."""
    rows = [(sequence, start + i) for sequence, start in enumerate(starts) for i in range(counts[sequence])]
    seen: Counter = Counter()
    partial: dict[int, set[int]] = {}
    items: Counter = Counter()
    for first, count, _, begin, end, is_partial, *_ in made.items:
        for row in made.item_rows[first : first + count]:
            items[int(row)] += is_partial
            for split in range(begin // SPLIT, (end - 1) // SPLIT + 1):
                seen[int(row), split] += 1
                if is_partial:
                    partial.setdefault(int(row), set()).add(int(made.row_slots[row]) + split)
    for row, (_, place) in enumerate(rows):
        lowest = max(0, place + 1 - window) if window else 0
        for split in range(lowest // SPLIT, place // SPLIT + 1):
            assert seen[row, split] == 1, (row, split)
    assert max(seen.values()) == 1
    joined = {row: set(range(slot, slot + count)) for row, (slot, count, _) in enumerate(made.joins.tolist()) if count}
    assert joined == partial
    assert [items[row] for row in range(len(rows))] == made.joins[:, 2].tolist()
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
    shared = [2 * SPLIT, len(common), *common] if len(common) > 1 else []
    made = plan(sizes(slots, window), firsts, counts, starts, shared)
    computed(made, counts, starts, window)
    assert made.joins[:, 1].sum() <= slots
    assert (np.diff(made.items[:, 4] - made.items[:, 3]) <= 0).all()
    # What Work reserves.
    assert len(made.items) <= sum(counts) + slots and len(made.item_rows) <= 2 * sum(counts)


def test_one_long_sequence_is_spread_over_the_programs() -> None:
    made = plan(sizes(), [0], [1], [SPLIT * 20 - 1])
    # Seven items, of three splits each but the last, for the six programs.
    assert len(made.items) == 7 and made.items[:, 5].all() and made.joins.tolist() == [[0, 20, 7]]


def test_many_sequences_of_a_length_are_not_split() -> None:
    made = plan(sizes(), list(range(32)), [1] * 32, [SPLIT * 4] * 32)
    assert len(made.items) == 32 and not made.items[:, 5].any() and not made.joins.any()


def test_an_empty_step_has_nothing_to_do() -> None:
    made = plan(sizes(), [], [], [])
    assert len(made.items) == 0 and len(made.joins) == 0


def test_sequences_that_begin_with_the_same_pages_are_found_with_what_they_share_in_whole_splits() -> None:
    tables = np.array([[1, 2, 3, 4, 5, 6], [9, 9, 9, 9, 9, 9], [1, 2, 3, 4, 7, 0], [1, 2, 3, 4, 5, 8]], np.int32)
    starts = [90, 90, 70, 95]
    assert shared_prefixes(tables, starts, page_tokens=16, split=32).tolist() == [64, 3, 0, 2, 3]
    # The one that has just begun shares nothing yet: its rows don't see the whole of the first split.
    assert shared_prefixes(tables, [90, 90, 20, 95], page_tokens=16, split=32).tolist() == [64, 2, 0, 3]
    assert shared_prefixes(tables, starts, page_tokens=24, split=32).tolist() == []


def drawn(draw: random.Random) -> tuple[list[int], list[int], np.ndarray]:
    """Rows and first positions of some sequences, and their tables; texts go on as one of a few others do."""
    count = draw.choice([0, 1, 2, 5, 12, 40])
    longest = draw.choice([100, 500, 3000])
    starts = [draw.choice([0, SPLIT, 2 * SPLIT, draw.randrange(longest)]) for _ in range(count)]
    counts = [draw.choice([1, 1, 1, 5, 16, 40]) for _ in range(count)]
    tables = np.array([draw.sample(range(1000), longest // PAGE_TOKENS + 10) for _ in range(count)], np.int32)
    for sequence in range(1, count):
        if draw.random() < 0.5:
            same = draw.choice([1, 4, 8, 9, longest // PAGE_TOKENS])
            tables[sequence, :same] = tables[draw.randrange(min(sequence, 3)), :same]
    return counts, starts, tables.reshape(count, longest // PAGE_TOKENS + 10)


@pytest.mark.parametrize("seed", range(20))
def test_plans_and_shared_prefixes_are_those_computed_in_numpy(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(40):
        counts, starts, tables = drawn(draw)
        groups = plan_in_numpy.shared_prefixes(tables, starts, PAGE_TOKENS, SPLIT)
        shared = shared_prefixes(tables, starts, PAGE_TOKENS, SPLIT)
        assert shared.tolist() == [n for sequences, tokens in groups for n in (tokens, len(sequences), *sequences)]
        firsts = np.cumsum([0, *counts])[:-1]
        limits = Sizes(
            tile_rows=draw.choice([1, 8, 21]), group=draw.choice([1, 3, 4]), kv_heads=draw.choice([1, 2, 8]),
            split=SPLIT, programs=draw.choice([1, 6, 20, 60, 264]), slots=draw.choice([0, 3, 50, 1000]),
            window=draw.choice([0, 0, 1, 40, 200]),
        )  # fmt: skip
        expected = plan_in_numpy.plan(limits, firsts, counts, starts, groups)
        made = plan(limits, firsts, counts, starts, shared)
        for field in fields(expected):
            one, other = getattr(expected, field.name), getattr(made, field.name)
            assert one.dtype == other.dtype and np.array_equal(one, other), field.name


def test_plans_of_all_sizes_are_compiled_once() -> None:
    """A second compilation would make a request wait."""
    for starts in ([], [SPLIT], [200, 200, 10]):
        tables = np.arange(13 * len(starts), dtype=np.int32).reshape(len(starts), 13) % 13
        counts = [1] * len(starts)
        shared = shared_prefixes(tables, starts, PAGE_TOKENS, SPLIT)
        plan(sizes(), list(range(len(starts))), counts, starts, shared)
    assert len(plans._write.signatures) == len(plans._shared_prefixes.signatures) == 1
