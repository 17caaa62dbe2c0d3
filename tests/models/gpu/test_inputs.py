"""What a step's kernels read: each batch in its place, filled up, and nothing of the batch before."""

from __future__ import annotations

import pytest
import torch

from kernels.device import device_of
from kernels.paged_attention.plan import Sizes
from models.batch import Stretch, make_batch
from models.gpu.inputs import StepInputs

PAGE_TOKENS = 16
KINDS = [Sizes(8, 2, 2, 32, 6, 64), Sizes(4, 4, 1, 32, 6, 64, window=20)]
CPU = device_of(torch.device("cpu"))


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
    assert [plan.counts.tolist() for plan in step.plans] == [[0, 0], [0, 0]]


def test_pieces_begin_where_wide_loads_may() -> None:
    step = inputs(fixed=False).put(batch(), 4)
    tensors = [step.slots, step.tokens, step.positions, step.wanted, step.tables]
    tensors += [getattr(plan, name) for plan in step.plans for name in ("counts", "items", "item_rows", "joins")]
    base = tensors[0].data_ptr()
    assert all((tensor.data_ptr() - base) % 16 == 0 for tensor in tensors)
