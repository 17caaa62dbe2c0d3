"""What a step's kernels read: each batch in its place, filled up, and nothing of the batch before."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.device import device_of
from kernels.paged_attention import plan as plans
from kernels.paged_attention.plan import Sizes
from models.batch import Batch, Stretch, make_batch
from models.branches import own_pages
from models.gpu import inputs as step_inputs
from models.gpu.inputs import Step, StepInputs
from models.states import States
from services.worker.parallel.calls import batch_of, forward_call
from tests.kernels.paged_attention import plan_in_numpy

PAGE_TOKENS = 16
KINDS = [Sizes(8, 2, 2, 32, 6, 64), Sizes(4, 4, 1, 32, 6, 64, window=20)]
CPU = device_of(torch.device("cpu"))
COMPILED = [plans._write, plans._shared_prefixes, step_inputs._sequences]


def inputs(fixed: bool) -> StepInputs:
    return StepInputs(16, KINDS, PAGE_TOKENS, 8, fixed, CPU)


def batch():
    return make_batch([Stretch([5, 6, 7], 40, [4, 2, 9], 1), Stretch([8], 3, [7], 0)], PAGE_TOKENS)


@pytest.mark.parametrize("fixed", [False, True])
def test_a_batch_is_filled_up_with_rows_that_are_kept_nowhere(fixed: bool) -> None:
    there = inputs(fixed)
    there.put(make_batch([Stretch(list(range(16)), 0, [3], 0)], PAGE_TOKENS), 16)
    step = there.put(batch(), 6)
    assert step.rows == 6
    assert step.tokens.tolist() == [5, 6, 7, 8, 0, 0]
    assert step.positions.tolist() == [40, 41, 42, 3, 0, 0]
    assert step.slots.tolist() == [9 * 16 + 8, 9 * 16 + 9, 9 * 16 + 10, 7 * 16 + 3, -1, -1]
    assert step.wanted.tolist() == ([1, 2, 3, 0, 0, 0] if fixed else [1, 2, 3])


def test_tables_are_as_wide_as_the_batch_or_stay_where_they_are() -> None:
    assert inputs(fixed=False).put(batch(), 4).tables.tolist() == [[4, 2, 9], [7, 0, 0]]
    there = inputs(fixed=True)
    first = there.put(batch(), 4)
    assert first.tables.shape == (16, 8)
    assert first.tables[:2, :3].tolist() == [[4, 2, 9], [7, 0, 0]]
    again = there.put(make_batch([Stretch([1], 0, [6], 0)], PAGE_TOKENS), 4)
    assert again.tables.data_ptr() == first.tables.data_ptr()
    assert again.tables[0, 0] == 6


def test_every_kind_of_attention_gets_its_own_plan() -> None:
    step = inputs(fixed=False).put(batch(), 4)
    for kind, plan in zip(KINDS, step.plans, strict=True):
        count = int(plan.counts[0])
        items = plan.items.view(-1, 8)[:count]
        # The rows of all tiles are the batch's, each once: nothing is shared here.
        rows = sorted({int(row) for first, n, *_ in items.tolist() for row in plan.item_rows[first : first + n]})
        assert rows == [0, 1, 2, 3]
        first_seen = min(int(item[3]) for item in items if item[2] == 0)
        assert first_seen == (21 if kind.window else 0)


@pytest.mark.parametrize("fixed", [False, True])
def test_a_tree_brings_pages_to_copy_and_second_slots_of_rows(fixed: bool) -> None:
    """Two branches after the first draft token: their pages begin with the end of the text and that token."""
    there = StepInputs(16, KINDS, PAGE_TOKENS, 8, fixed, CPU, branch_pages=4)
    tree = make_batch([Stretch([8], 3, [7], 0), Stretch([5, 6, 7, 8, 9], 20, [4, 2], 0, [-1, 0, 0, 0], [11, 12])], 16)
    step = there.put(tree, 8)
    sources, targets = step.forks
    assert (sources.tolist(), targets.tolist()) == ([2, 2], [11, 12])
    assert step.also is not None
    begins, slots = (each.tolist() for each in step.also)
    # Root and first draft token are rows 1 and 2, at positions 20 and 21.
    assert begins == [0, 0, 2, 4, 4, 4, 4, 4, 4]
    assert sorted(slots[:2]) == [11 * 16 + 4, 12 * 16 + 4] and sorted(slots[2:4]) == [11 * 16 + 5, 12 * 16 + 5]
    again = there.put(batch(), 8)
    assert again.also is not None and again.also[0].tolist() == [0] * 9 and len(again.forks[0]) == 0


def test_without_pages_for_branches_there_is_no_room_for_second_slots() -> None:
    assert inputs(fixed=True).put(batch(), 4).also is None


def test_a_step_of_nothing_but_filling_has_no_work() -> None:
    there = inputs(fixed=True)
    there.put(batch(), 4)
    there.empty(16)
    step = there.fixed_step(16)
    assert step.slots.tolist() == [-1] * 16
    assert [plan.counts.tolist() for plan in step.plans] == [[0], [0]]


@pytest.mark.parametrize("fixed", [False, True])
def test_what_is_run_of_each_sequence_is_there_filled_up_with_sequences_of_no_rows(fixed: bool) -> None:
    there = StepInputs(16, KINDS, PAGE_TOKENS, 8, fixed, CPU, states=States(3, 8))
    there.empty(16)
    first = make_batch([Stretch([5, 6, 7], 0, [4], 0, state=2), Stretch([8], 0, [7], 0, state=1)], PAGE_TOKENS)
    # First row, rows, state, start, begin, settled.
    expected = [[0, 3, 2, 0, 0, 3], [3, 1, 1, 0, 0, 1]]
    assert there.put(first, 4).states.tolist() == expected + 2 * [[0] * 6] * fixed
    drafted = make_batch([Stretch([1, 2, 3], 3, [4], 0, state=2, settled=4)], PAGE_TOKENS)
    assert there.put(drafted, 4).states.tolist() == [[0, 3, 2, 3, 3, 4]] + 3 * [[0] * 6] * fixed
    again = make_batch([Stretch([1], 5, [4], 0, state=2)], PAGE_TOKENS)
    assert there.put(again, 1).states.tolist() == [[0, 1, 2, 5, 4, 6]]
    assert inputs(fixed).put(batch(), 4).states is None


def test_pieces_begin_where_wide_loads_may() -> None:
    step = inputs(fixed=False).put(batch(), 4)
    tensors = [step.slots, step.tokens, step.positions, step.wanted, step.tables]
    tensors += [getattr(plan, name) for plan in step.plans for name in ("counts", "items", "item_rows", "joins")]
    base = tensors[0].data_ptr()
    assert all((tensor.data_ptr() - base) % 16 == 0 for tensor in tensors)


def drawn(draw: random.Random, tables: int) -> list[Stretch]:
    """Chains and trees of at most 60 rows in all; some begin with the same pages."""
    stretches = []
    for own in range(20, 20 + draw.randint(1, 4)):
        start, count = draw.choice([0, 5, 40, 64, 100]), draw.choice([1, 1, 4, 15])
        pages = [*(range(6) if draw.random() < 0.5 else range(own * 10, own * 10 + 6)), 500 + own, 600 + own]
        parents = [draw.randrange(-1, row) for row in range(count - 1)] if draw.random() < 0.3 else []
        spare = range(1000 + 100 * own, 1000 + 100 * own + own_pages(parents, start, PAGE_TOKENS) if parents else 0)
        stretches.append(Stretch(list(range(count)), start, pages[:tables], draw.randrange(count), parents, spare))
    return stretches


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_batch_after_batch_is_there_with_its_plans_and_second_slots(fixed: bool, seed: int) -> None:
    draw = random.Random(seed)
    there = StepInputs(60, KINDS, PAGE_TOKENS, 8, fixed, CPU, branch_pages=100)
    for _ in range(10):
        batch = make_batch(drawn(draw, 8), PAGE_TOKENS)
        own = len(batch.tokens)
        rows = min(60, own + draw.choice([0, 3, 20]))
        step = there.put(batch, rows)
        padding = [0] * (rows - own)
        assert step.tokens.tolist() == [*batch.tokens, *padding]
        assert step.positions.tolist() == [*batch.positions, *padding]
        assert step.slots.tolist() == [*batch.slots, *([-1] * len(padding))]
        assert step.feature_rows.tolist() == [*batch.feature_rows, *range(own, rows)]
        assert step.wanted[: len(batch.wanted)].tolist() == batch.wanted.tolist()
        tables = batch.tables.reshape(-1, batch.table_width)
        assert step.tables[: len(tables), : batch.table_width].tolist() == tables.tolist()
        assert torch.stack(step.forks).T.reshape(-1).tolist() == batch.forks.tolist()
        begins, slots = (each.tolist() for each in step.also)
        assert begins[0] == 0 and len(begins) == rows + 1
        for row in range(rows):
            assert slots[begins[row] : begins[row + 1]] == batch.also_slots[batch.also_rows == row].tolist()
        assert_plans(step, batch, tables)


def assert_plans(step: Step, batch: Batch, tables: np.ndarray) -> None:
    tiles = batch.tiles.reshape(-1, 3)
    begins = np.flatnonzero(np.diff(tiles[:, 0], prepend=-1))
    firsts, counts = tiles[begins, 1], np.add.reduceat(tiles[:, 2], begins)
    starts = batch.positions[firsts]
    for kind, found in zip(KINDS, step.plans, strict=True):
        shared = plan_in_numpy.shared_prefixes(tables, starts.tolist(), PAGE_TOKENS, kind.split)
        expected = plan_in_numpy.plan(kind, firsts, counts, starts, shared)
        assert found.counts.tolist() == [len(expected.items)]
        for name in ("items", "item_rows", "row_slots", "joins"):
            values = getattr(expected, name).reshape(-1)
            assert getattr(found, name)[: len(values)].tolist() == values.tolist(), name


def test_batches_of_all_kinds_are_compiled_once_when_inputs_are_made() -> None:
    there = inputs(fixed=True)
    before = [len(each.signatures) for each in COMPILED]
    there.put(batch(), 4)
    there.put(make_batch([Stretch([1] * 8, 40, [6, 5, 4], 0), Stretch([1] * 8, 40, [6, 5, 3], 0)], PAGE_TOKENS), 16)
    there.put(batch_of(forward_call(batch())[1:]), 4)
    there.empty(4)
    assert before == [len(each.signatures) for each in COMPILED] == [1, 1, 1]


@pytest.mark.slow
def test_no_loop_leaves_an_array() -> None:
    """Batches, plans and inputs again, in another process: it compiles the loops with checks of every index."""
    root = Path(__file__).parents[3]
    files = ["tests/models/test_batch.py", "tests/kernels/paged_attention/test_plan.py", __file__]
    command = [sys.executable, "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", *files]
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
