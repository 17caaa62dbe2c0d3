"""Attention over pages in Triton against plain torch, and bits that hang on a row's own context alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.kv_store.reference import as_kept, from_kept
from kernels.paged_attention import fused, reference
from kernels.testing import assert_close, assert_same_bits, device, random
from tests.kernels.paged_attention.paged_rows import Rows, make

# heads, kv_heads, D, page_tokens
SIZES = [(2, 2, 64, 16), (9, 3, 64, 32), (8, 1, 128, 16), (3, 1, 24, 32), (1, 1, 80, 16), (4, 2, 96, 16)]
# Small, so that contexts of a test have several. A multiple of every shape's block.
SPLIT = 64
# A prefill, a single row, drafts to verify over a split's end, a chunk in the middle, and a first token.
MIXED = [(0, 20), (140, 1), (62, 5), (50, 9), (0, 1)]
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def compute(rows: Rows, **options: object) -> torch.Tensor:
    out = fused.attend(*rows.arguments(), split=SPLIT, **options)
    assert not out.isnan().any()
    return out


def expected(rows: Rows, **options: object) -> torch.Tensor:
    return reference.attend(*rows.arguments(), **options)


@BOTH
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_mixed_rows_equal_the_reference(size: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    rows = make(*size, MIXED, dtype)
    assert_close(compute(rows), expected(rows), dtype)


def test_float16_equals_the_reference() -> None:
    rows = make(4, 1, 64, 16, MIXED, torch.float16)
    assert_close(compute(rows), expected(rows))


@pytest.mark.parametrize("window", [1, 50, 100])
def test_a_window_hides_what_lies_before_it(window: int) -> None:
    rows = make(2, 1, 32, 16, MIXED, torch.float32)
    assert_close(compute(rows, window=window), expected(rows, window=window))


@BOTH
def test_a_sink_takes_its_share_of_the_weights_however_a_context_is_split(dtype: torch.dtype) -> None:
    rows = make(4, 2, 32, 16, [(0, 5), (140, 2)], dtype)
    sinks = torch.tensor([-200.0, 0.0, 3.0, 200.0], device=device())
    whole = compute(rows, sinks=sinks, slots=0)
    assert_close(whole, expected(rows, sinks=sinks), dtype)
    assert_same_bits(compute(rows, sinks=sinks, slots=20), whole)
    # What is next to nothing takes nothing, and what is all leaves nothing.
    assert_same_bits(whole[:, 0], compute(rows)[:, 0])
    assert not whole[:, 3].any()


@BOTH
def test_whether_a_context_is_split_among_programs_changes_no_bit(dtype: torch.dtype) -> None:
    rows = make(4, 1, 64, 16, [(230, 1), (10, 3), (120, 4), (63, 1), (64, 1)], dtype)
    whole = compute(rows, slots=0)
    assert_same_bits(compute(rows, slots=5), whole)
    assert_same_bits(compute(rows, slots=100), whole)


@pytest.mark.parametrize("window", [0, 400])
@BOTH
def test_an_item_of_several_splits_leaves_each_of_them_by_itself(window: int, dtype: torch.dtype) -> None:
    rows = make(9, 3, 24, 16, [(500, 1), (40, 3)], dtype)
    limits = fused.sizes(rows.queries, rows.keys, 100, window, split=SPLIT)
    items = fused.plan(limits, [0, 1], [1, 3], [500, 40]).items
    assert any(partial and end - begin > SPLIT for begin, end, partial in items[:, 3:6].tolist())
    assert_same_bits(compute(rows, window=window), compute(rows, window=window, slots=0))


@pytest.mark.parametrize("window", [0, 70])
@BOTH
def test_a_row_alone_has_the_bits_it_has_in_a_batch(window: int, dtype: torch.dtype) -> None:
    rows = make(6, 2, 64, 16, MIXED, dtype)
    together = compute(rows, window=window)
    for sequence, row in ((0, 13), (1, 0), (2, 1), (2, 4), (3, 8)):
        alone = compute(rows.some(sequence, row, 1), window=window)
        assert_same_bits(alone[0], together[rows.sequences.index(sequence) + row])


@BOTH
def test_chunks_give_the_bits_of_the_whole(dtype: torch.dtype) -> None:
    rows = make(3, 1, 64, 16, [(0, 70)], dtype)
    whole = compute(rows)
    for first, count in ((0, 40), (40, 23), (63, 1), (64, 1), (65, 5)):
        assert_same_bits(compute(rows.some(0, first, count)), whole[first : first + count])


@pytest.mark.parametrize(("shared", "dtype"), [(64, torch.float32), (150, torch.bfloat16)])
def test_a_shared_prefix_read_once_for_all_gives_the_same_bits(shared: int, dtype: torch.dtype) -> None:
    spans = [(shared + 50, 1), (shared + 60, 7), (shared, 5), (90, 1)]
    rows = make(4, 1, 64, 16, spans, dtype, shared=shared // 16 * 16)
    once = compute(rows, cascade=True)
    assert_close(once, expected(rows), dtype)
    assert_same_bits(once, compute(rows, cascade=False))
    assert_same_bits(once, compute(rows, cascade=True, slots=3))


@pytest.mark.parametrize(("window", "slots"), [(0, 0), (70, 0), (0, 30)])
@BOTH
def test_one_loop_over_all_splits_gives_the_same_bits(window: int, slots: int, dtype: torch.dtype) -> None:
    rows = make(4, 2, 32, 16, MIXED, dtype)
    rows.keys, rows.values = rows.keys * 3, rows.values - 1
    flat = replace(fused.shape(32, 2, dtype, 80), flat=True)
    assert_same_bits(compute(rows, window=window, slots=slots, chosen=flat), compute(rows, window=window, slots=20))


def test_who_joins_a_row_leaves_its_count_at_0_for_the_next_launch() -> None:
    rows = make(3, 1, 32, 16, [(200, 2)], torch.float32)
    limits = fused.sizes(rows.queries, rows.keys, 8, split=SPLIT)
    work, partials = fused.AttentionWork(2, 8, device()), fused.Partials.make(8, 3, 32, device())
    made = fused.plan(limits, [0], [2], [200])
    assert made.joins[:, 1].tolist() == [4, 4]
    work.put(made)
    tables, positions = (torch.tensor(each, dtype=torch.int32, device=device()) for each in (rows.tables, rows.places))
    outs = [torch.empty_like(rows.queries) for _ in range(2)]
    for out in outs:
        partials.sums.fill_(float("nan"))
        fused.attend_planned(
            rows.queries, rows.keys, rows.values, tables, positions, 1.0, work, partials, out, split=SPLIT
        )
        assert not partials.arrived.any()
    assert not outs[0].isnan().any()
    assert_same_bits(*outs)


def test_rows_that_no_plan_names_are_not_written() -> None:
    rows = make(2, 1, 32, 16, [(20, 2)], torch.float32)
    limits = fused.sizes(rows.queries, rows.keys, 8, split=SPLIT)
    work = fused.AttentionWork(4, 8, device())
    work.put(fused.plan(limits, [0], [1], [20]))
    out = torch.full_like(rows.queries, 7.0)
    partials = fused.Partials.make(8, 2, 32, device())
    tables = torch.tensor(rows.tables, dtype=torch.int32, device=device())
    positions = torch.tensor(rows.places, dtype=torch.int32, device=device())
    fused.attend_planned(rows.queries, rows.keys, rows.values, tables, positions, 1.0, work, partials, out, split=SPLIT)
    assert (out[1] == 7.0).all() and not (out[0] == 7.0).all()


def test_scores_far_apart_do_not_overflow() -> None:
    rows = make(2, 1, 32, 16, [(130, 2)], torch.float32)
    rows.queries = random(*rows.queries.shape, dtype=torch.float32) * 300
    assert_close(compute(rows), expected(rows))


@BOTH
@pytest.mark.parametrize("size", [(3, 1, 24, 32), (4, 2, 96, 16)], ids=str)
def test_pages_of_bytes_are_read_as_the_numbers_they_stand_for(
    size: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    rows = make(*size, MIXED, torch.float32)
    keys, values = (as_kept(each, torch.uint8) for each in (rows.keys, rows.values))
    coded = replace(rows, queries=rows.queries.to(dtype), keys=keys, values=values)
    wide = replace(coded, keys=from_kept(keys), values=from_kept(values))
    found = compute(coded)
    assert_close(found, expected(wide), dtype)
    assert_close(found, expected(coded), dtype)
    # Rounded to 3 bits of fraction: not the pages' own numbers.
    assert (expected(coded) - expected(rows)).abs().max() > 0.01
