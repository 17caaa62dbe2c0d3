"""The per-row operations in Triton against plain torch."""

from __future__ import annotations

import pytest
import torch

from kernels.gemm.ending import whole
from kernels.gemm.ranges import Ranges
from kernels.norm_rope_act import fused, reference
from kernels.testing import assert_close, assert_same_bits, device, poisoned, random

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
EPSILON = 1e-5


@BOTH
@pytest.mark.parametrize("width", [1, 64, 72, 1100])
def test_a_sum_is_kept_in_place_and_normed(dtype: torch.dtype, width: int) -> None:
    residual, delta = random(3, width, dtype=torch.float32), random(3, width, dtype=dtype, seed=1)
    weight = random(width, dtype=torch.float32, seed=2)
    expected = reference.add_norm(residual, delta, weight, EPSILON)
    kept, normed = fused.add_norm(residual, delta, weight, EPSILON, dtype)
    assert kept is residual
    assert_close(kept, expected[0])
    assert_close(normed, expected[1], dtype)


def test_without_a_delta_the_residual_stays() -> None:
    residual, weight = random(2, 72, dtype=torch.float32), random(72, dtype=torch.float32, seed=2)
    before = residual.clone()
    _, normed = fused.add_norm(residual, None, weight, EPSILON)
    assert_same_bits(residual, before)
    assert_close(normed, reference.add_norm(before, None, weight, EPSILON)[1])


@BOTH
def test_wanted_rows_are_normed_in_their_order(dtype: torch.dtype) -> None:
    residual, delta = random(5, 72, dtype=torch.float32), random(5, 72, dtype=dtype, seed=1)
    weight, rows = random(72, dtype=torch.float32, seed=2), torch.tensor([4, 1, 1], dtype=torch.int32)
    expected = reference.add_norm(residual, delta, weight, EPSILON)[1][rows]
    before = residual.clone()
    assert_close(fused.norm_wanted(residual, delta, rows.to(residual.device), weight, EPSILON, dtype), expected, dtype)
    assert_same_bits(residual, before)
    assert fused.norm_wanted(residual, delta, rows[:0], weight, EPSILON, dtype).shape == (0, 72)


@BOTH
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("width", [1, 72, 1100])
def test_a_tap_writes_each_row_to_its_place_and_no_other_column(
    width: int, normed: bool, dtype: torch.dtype
) -> None:
    residual, delta = random(4, width, dtype=torch.float32), random(4, width, dtype=dtype, seed=1)
    weight = random(width, dtype=torch.float32, seed=2)
    places = torch.tensor([2, 0, 3, 1], dtype=torch.int32, device=residual.device)
    expected = reference.add_norm(residual, delta, weight, EPSILON)[int(normed)]
    out, before = poisoned(5, 3 * width, dtype=dtype), residual.clone()
    columns = out[:, width : 2 * width]
    fused.tap(residual, delta, places, columns[:4], *((weight, EPSILON) if normed else ()))
    assert_close(columns[places.long()], expected, dtype)
    assert_same_bits(residual, before)
    assert out[:, :width].isnan().all() and out[:, 2 * width :].isnan().all() and out[4].isnan().all()


@BOTH
@pytest.mark.parametrize(("splits", "biased"), [(2, True), (3, False)])
@pytest.mark.parametrize("width", [72, 1100])
def test_what_is_added_may_be_in_ranges_with_the_bits_of_their_sum(
    width: int, splits: int, biased: bool, dtype: torch.dtype
) -> None:
    bias = random(width, dtype=dtype, seed=1) if biased else None
    delta = Ranges(random(splits, 3, width, dtype=torch.float32), bias, dtype)
    expected = delta.partial.sum(0) + (0 if bias is None else bias)
    assert_close(whole(delta), expected, dtype)
    assert whole(delta).dtype == dtype
    weight = random(width, dtype=torch.float32, seed=2)
    rows, places = (torch.tensor(each, dtype=torch.int32, device=device()) for each in ([2, 0], [1, 2, 0]))
    made = []
    for given in (delta, whole(delta)):
        residual, columns = random(3, width, dtype=torch.float32, seed=3), torch.zeros_like(whole(delta))
        fused.tap(residual, given, places, columns, weight, EPSILON)
        wanted = fused.norm_wanted(residual, given, rows, weight, EPSILON, dtype)
        ended = fused.norm(given, weight, EPSILON)
        made.append([columns, wanted, ended, *fused.add_norm(residual, given, weight, EPSILON, dtype)])
    for ours, theirs in zip(*made, strict=True):
        assert_same_bits(ours, theirs)


@BOTH
def test_a_part_of_wider_rows_is_normed(dtype: torch.dtype) -> None:
    x, weight = random(3, 100, dtype=dtype), random(40, dtype=torch.float32, seed=2)
    expected = reference.add_norm(x[:, 20:60], None, weight, EPSILON)[1]
    assert_close(fused.norm(x[:, 20:60], weight, EPSILON), expected, dtype)


@BOTH
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "clamped_swiglu"])
@pytest.mark.parametrize("width", [1, 40, 1500])
def test_the_gate_is_that_of_plain_torch(dtype: torch.dtype, width: int, activation: str) -> None:
    gate_up = random(3, 2 * width, dtype=dtype)
    assert_close(fused.gated(gate_up, activation, 0.7), reference.gated(gate_up, activation, 0.7), dtype)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gates_far_from_zero_are_all_or_nothing(activation: str) -> None:
    gate_up = torch.tensor([[-1e4, -100.0, 100.0, 1e4, 2.0, 2.0, 2.0, 2.0]], device=device())
    assert fused.gated(gate_up, activation).tolist() == [[0.0, 0.0, 200.0, 2e4]]


@BOTH
def test_rows_of_the_table_come_exactly(dtype: torch.dtype) -> None:
    table, tokens = random(9, 1100, dtype=dtype), torch.tensor([8, 0, 3, 3], dtype=torch.int32)
    assert_same_bits(fused.embed(tokens.to(table.device), table), table[tokens.long()].float())


def test_rows_are_fed_with_the_ids_at_their_places_and_with_any_where_there_is_none() -> None:
    given = torch.tensor([7, 99, -5, 100, 2**31 - 1], dtype=torch.int32, device=device())
    tokens = torch.tensor([1, 0, 0, 2, 3, 4, 3], dtype=torch.int32, device=device())
    fused.feed(tokens[:6], given, 100)
    assert tokens.tolist() == [99, 7, 7, 0, 0, 0, 3]


@BOTH
@pytest.mark.parametrize("width", [1, 72, 1100])
def test_numbers_are_gated_each_by_its_own_or_by_one_a_row(dtype: torch.dtype, width: int) -> None:
    x, gates = random(3, width, dtype=dtype), random(3, width + 8, dtype=dtype, seed=1)[:, 8:]
    assert_close(fused.sigmoid_gated(x, gates), reference.sigmoid_gated(x, gates), dtype)
    one = gates[:, :1].float()
    assert_close(fused.sigmoid_gated(x, one), reference.sigmoid_gated(x, one), dtype)


def test_a_row_that_is_no_number_spoils_no_other() -> None:
    residual, weight = random(3, 64, dtype=torch.float32), random(64, dtype=torch.float32, seed=2)
    residual[1] = poisoned(64, dtype=torch.float32)
    expected = reference.add_norm(residual, None, weight, EPSILON)[1]
    _, normed = fused.add_norm(residual, None, weight, EPSILON)
    assert_close(normed[[0, 2]], expected[[0, 2]])
    assert bool(normed[1].isnan().all())
