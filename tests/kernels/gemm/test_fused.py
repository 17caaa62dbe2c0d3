"""The batch-invariant linear against plain torch, and its promise."""

from __future__ import annotations

import pytest
import torch

from kernels import interpreter
from kernels.gemm import reference
from kernels.gemm.ending import interleaved
from kernels.gemm.fused import BLOCK_M, for_many_rows, linear, linear_by_head, rows_with_all_kernels, tile_of
from kernels.gemm.tiles import Tile
from kernels.launch import noting
from kernels.norm_rope_act import reference as rows_in_torch
from kernels.norm_rope_act.fused import gated
from kernels.testing import assert_close, assert_same_bits, poisoned, random

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def example(rows: int, columns: int, inputs: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    # Scaled so that outputs are of the order of 1, as tolerances want them.
    x, weight = random(rows, inputs, dtype=dtype), random(columns, inputs, dtype=dtype, seed=1) / inputs**0.5
    return x, weight, random(columns, dtype=dtype, seed=2)


@BOTH
@pytest.mark.parametrize(("rows", "columns", "inputs"), [(1, 1, 1), (3, 70, 33), (BLOCK_M + 1, 33, 300)])
def test_a_linear_is_that_of_plain_torch(dtype: torch.dtype, rows: int, columns: int, inputs: int) -> None:
    x, weight, bias = example(rows, columns, inputs, dtype)
    assert_close(linear(x, weight, bias), reference.linear(x, weight, bias), dtype)
    assert_close(linear(x, weight), reference.linear(x, weight), dtype)


def test_sums_can_be_kept_in_float32() -> None:
    x, weight, _ = example(2, 40, 64, torch.bfloat16)
    out = linear(x, weight, out_dtype=torch.float32)
    assert out.dtype == torch.float32
    assert_close(out, reference.linear(x, weight))


def test_rows_may_stand_apart() -> None:
    x, weight, _ = example(4, 40, 96, torch.float32)
    part = x[:, 32:]
    assert_close(linear(part, weight[:, 32:].contiguous()), reference.linear(part, weight[:, 32:]))


@BOTH
def test_a_row_has_the_same_bits_alone_in_few_rows_and_in_many(dtype: torch.dtype) -> None:
    """Few rows take the way in ranges, many the way through all of them: both add in the same order."""
    inputs = 1200
    _, splits, _ = tile_of(70, inputs, dtype)
    assert splits > 1
    x, weight, bias = example(BLOCK_M + 6, 70, inputs, dtype)
    many = linear(x, weight, bias)
    for rows in (slice(0, 1), slice(3, 4), slice(5, 5 + BLOCK_M)):
        assert_same_bits(linear(x[rows], weight, bias), many[rows])


INTERPRETED = interpreter.in_use()
# Of a weight, columns and inputs: with one range of K and with several, in steps of 64 and of 128.
SHAPES = [(70, 300)] if INTERPRETED else [(4096, 4096), (28672, 4096), (4096, 14336), (6144, 4096), (576, 1536)]
ROWS = (1, 5, 130) if INTERPRETED else (1, 64, 128, 300, 2048)


@pytest.mark.parametrize(("columns", "inputs"), SHAPES)
def test_a_row_has_the_same_bits_in_the_tile_for_many_rows(columns: int, inputs: int) -> None:
    x, weight, bias = example(max(ROWS), columns, inputs, torch.bfloat16)
    few = linear(x, weight, bias, torch.float32, many=False)
    assert_close(few[:3], reference.linear(x[:3], weight, bias), torch.bfloat16)
    for rows in ROWS:
        assert_same_bits(linear(x[:rows], weight, bias, torch.float32, many=True), few[:rows])
        assert_same_bits(linear(x[:rows], weight, bias, torch.float32), few[:rows])


def test_the_tile_for_many_rows_sums_the_same_steps_of_k_and_is_taken_where_it_makes_enough_programs() -> None:
    for columns, inputs, from_rows in ((4096, 4096, 385), (28672, 4096, 65), (4096, 14336, 385), (576, 576, 3201)):
        tile = tile_of(columns, inputs, torch.bfloat16, 90)[0]
        assert for_many_rows(tile, from_rows - 1, columns, 90) == {}
        many = tile | for_many_rows(tile, from_rows, columns, 90)
        assert (many["BLOCK_M"], many["BLOCK_K"], many["IEEE"]) == (128, tile["BLOCK_K"], False)
    exact = tile_of(4096, 4096, torch.float32, 90)[0]
    assert for_many_rows(exact, 2048, 4096, 90) == for_many_rows(tile, 2048, 4096, 80) == {}


def test_no_linear_needs_a_kernel_that_no_power_of_two_of_rows_needs() -> None:
    """Those are what an executor prepares."""
    for columns in (100, 1000, 6144, 16000, 49152, 128256):
        tile = tile_of(columns, 4096, torch.bfloat16, 90)[0]
        last = rows_with_all_kernels(columns)
        prepared = [1 << power for power in range(last.bit_length())]
        assert prepared[-1] == last

        def kernel(rows: int, tile: dict[str, int] = tile, columns: int = columns) -> tuple[bool, int]:
            return rows > BLOCK_M, (tile | for_many_rows(tile, rows, columns, 90))["BLOCK_M"]

        assert {kernel(rows) for rows in range(1, 2 * last)} == {kernel(rows) for rows in prepared}


def test_tiles_and_ranges_follow_from_the_weight_alone_and_cover_it() -> None:
    for columns, inputs in ((49152, 576), (576, 576), (4096, 14336), (6144, 4096), (128256, 4096), (256, 7168), (8, 8)):
        for dtype in (torch.float32, torch.bfloat16):
            tile, splits, length = tile_of(columns, inputs, dtype)
            assert length % tile["BLOCK_K"] == 0
            assert (splits - 1) * length < inputs <= splits * length


@BOTH
def test_every_head_has_a_weight_of_its_own(dtype: torch.dtype) -> None:
    """As latent attention asks: a part of each head comes in, and a part of each head goes out."""
    x, weight = random(5, 3, 50, dtype=dtype), random(3, 40, 33, dtype=dtype, seed=1) / 33**0.5
    outs = [poisoned(5, 3, 48, dtype=dtype) for _ in range(2)]
    for module, out in zip((linear_by_head, reference.linear_by_head), outs, strict=True):
        module(x[..., :33], weight, out[..., :40])
        assert bool(out[..., 40:].isnan().all())
    assert_close(outs[0][..., :40], outs[1][..., :40], dtype)
    alone = torch.empty_like(outs[0][2:3])
    linear_by_head(x[2:3, :, :33], weight, alone[..., :40])
    assert_same_bits(alone[..., :40], outs[0][2:3, :, :40])


def test_few_rows_take_the_ranges_apart_and_a_kernel_that_adds_them() -> None:
    tile = Tile(32, 32, 2, 4, splits=4)
    x, weight, bias = example(20, 70, 128, torch.bfloat16)
    options = {"out_dtype": torch.float32, "tile": tile}
    with noting() as launches:
        few = linear(x, weight, bias, **options)
    assert [each.grid for each in launches] == [(1, 3, 4), (20, 1, 1)]
    assert_same_bits(few, linear(x.repeat(4, 1), weight, bias, **options)[:20])


@BOTH
@pytest.mark.parametrize(
    ("activation", "rows", "splits"), [("silu", BLOCK_M + 2, 2), ("gelu_tanh", 20, 2), ("clamped_swiglu", 5, 1)]
)
def test_gates_have_the_bits_of_a_linear_and_an_activation_behind_it(
    dtype: torch.dtype, activation: str, rows: int, splits: int
) -> None:
    tile, limit = Tile(32, 32, 2, 4, splits), 0.7 if activation == "clamped_swiglu" else 0.0
    x, weight, bias = example(rows, 70, 64, dtype)
    options = {"tile": tile, "activation": activation, "limit": limit}
    out = linear(x, interleaved(weight), interleaved(bias), **options)
    product = linear(x, weight, bias, tile=tile)
    assert_same_bits(out, gated(product, activation, limit))
    assert_close(out, rows_in_torch.gated(product.float(), activation, limit), dtype)
