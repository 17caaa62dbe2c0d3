"""The per-row ops of the CPU program against plain torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.cpu_program import FEATURE_ROWS, ROWS, STEP_WORDS, TOKENS, WANTED, WANTED_COUNT, Op
from kernels.linear.cpu import Rows
from kernels.linear.reference import quantize_rows
from kernels.norm_rope_act import reference
from kernels.norm_rope_act.cpu_rows import add_normed, clear, embed, norm, tap, wanted

# bfloat16 results are the float32 ones rounded: half a unit in the last of 8 bits.
TOLERANCE = {torch.bfloat16: 0.004, torch.float32: 2e-6}
DTYPES = list(TOLERANCE)
SIZES = [(1, 576), (5, 64), (11, 40), (9, 8)]

WORDS = {
    "rows": ROWS, "tokens": TOKENS, "wanted": WANTED, "wanted_count": WANTED_COUNT, "feature_rows": FEATURE_ROWS,
}  # fmt: skip


def run(op: Op, **words: int) -> None:
    step = np.zeros(STEP_WORDS, np.int64)
    for name, value in words.items():
        step[WORDS[name]] = value
    args = np.asarray(op.words, np.int64)
    for chunk in reversed(range(op.chunks(args.ctypes.data, step.ctypes.data))):
        op.run(args.ctypes.data, step.ctypes.data, chunk, 0)


def out_rows(tensor: torch.Tensor, scales: torch.Tensor | None = None) -> Rows:
    return Rows(tensor.data_ptr(), tensor.stride(0) * tensor.itemsize, 0 if scales is None else scales.data_ptr())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [16, 40, 576])
def test_embed_takes_the_rows_of_the_tokens(dtype: torch.dtype, width: int) -> None:
    table, residual = torch.randn(10, width).to(dtype), torch.full((5, width), torch.nan)
    tokens = np.array([7, 0, 7, 9, 3], np.int32)
    run(embed(table, residual.data_ptr()), rows=5, tokens=tokens.ctypes.data)
    assert torch.equal(residual, table[tokens.tolist()].float())


def test_embed_multiplies_the_rows_of_the_tokens() -> None:
    table, residual = torch.randn(10, 40).bfloat16(), torch.full((2, 40), torch.nan)
    tokens = np.array([7, 0], np.int32)
    run(embed(table, residual.data_ptr(), scale=55.5), rows=2, tokens=tokens.ctypes.data)
    assert torch.equal(residual, table[[7, 0]].float() * 55.5)


@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_what_is_added_is_normed_and_the_same_beside_any_number_of_rows(rows: int, width: int) -> None:
    given, residual, weight = torch.randn(rows, width) * 3, torch.randn(rows + 1, width), torch.randn(width)
    expected = residual[:rows] + reference.add_norm(given, None, weight, 1e-5)[1]
    alone, last = residual.clone(), residual[rows].clone()
    for row in range(rows):
        one = given[row].clone()
        run(add_normed(one.data_ptr(), alone[row].data_ptr(), width, weight, 1e-5), rows=1)
    run(add_normed(given.data_ptr(), residual.data_ptr(), width, weight, 1e-5), rows=rows)
    torch.testing.assert_close(residual[:rows], expected, rtol=2e-6, atol=1e-6)
    assert torch.equal(residual, alone) and torch.equal(residual[rows], last)


def test_a_part_of_a_table_gives_zeros_for_other_tokens() -> None:
    table, residual = torch.randn(4, 40), torch.full((5, 40), torch.nan)
    tokens = np.array([7, 0, 3, 6, 4], np.int32)
    run(embed(table, residual.data_ptr(), first=3), rows=5, tokens=tokens.ctypes.data)
    assert torch.equal(residual, torch.stack([table[0] * 0, table[0] * 0, table[0], table[3], table[1]]))


def test_clear_leaves_zeros_in_the_rows_of_the_step() -> None:
    residual = torch.randn(6, 40)
    last = residual[5].clone()
    run(clear(residual.data_ptr(), 40), rows=5)
    assert not residual[:5].any() and torch.equal(residual[5], last)


def test_embed_reads_beyond_the_fourth_gigabyte_of_a_table() -> None:
    """What nobody writes takes no memory."""
    table, residual = torch.empty(300_000, 8192, dtype=torch.bfloat16), torch.full((1, 8192), torch.nan)
    table[-1] = torch.randn(8192).bfloat16()
    tokens = np.array([299_999], np.int32)
    run(embed(table, residual.data_ptr()), rows=1, tokens=tokens.ctypes.data)
    assert torch.equal(residual[0], table[-1].float())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_norm_equals_the_reference(rows: int, width: int, dtype: torch.dtype) -> None:
    residual, weight = torch.randn(rows, width) * 3, torch.randn(width)
    # One row more, which nobody asked for.
    out = torch.full((rows + 1, width), torch.nan, dtype=dtype)
    run(norm(residual.data_ptr(), len(weight), weight, 1e-5, out_rows(out), dtype), rows=rows)
    expected = reference.add_norm(residual, None, weight, 1e-5)[1]
    torch.testing.assert_close(out[:rows].float(), expected, rtol=TOLERANCE[dtype], atol=1e-6)
    assert out[rows].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_wanted_rows_are_normed_one_behind_the_other(dtype: torch.dtype) -> None:
    residual, weight = torch.randn(9, 72), torch.randn(72)
    every, some = torch.empty(9, 72, dtype=dtype), torch.empty(6, 72, dtype=dtype)
    run(norm(residual.data_ptr(), len(weight), weight, 1e-5, out_rows(every), dtype), rows=9)
    chosen = np.array([8, 0, 3, 3, 7, 1], np.int64)
    op = norm(residual.data_ptr(), len(weight), weight, 1e-5, out_rows(some), dtype, wanted_only=True)
    run(op, rows=9, wanted=chosen.ctypes.data, wanted_count=6)
    assert torch.equal(some, every[chosen.tolist()])

    # In two ops.
    packed, then = torch.full((7, 72), torch.nan), torch.empty(6, 72, dtype=dtype)
    run(wanted(residual.data_ptr(), packed.data_ptr(), 72), rows=9, wanted=chosen.ctypes.data, wanted_count=6)
    assert packed[6].isnan().all()
    op = norm(packed.data_ptr(), len(weight), weight, 1e-5, out_rows(then), dtype, rows_at=WANTED_COUNT)
    run(op, rows=9, wanted_count=6)
    assert torch.equal(then, some)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_normed_rows_are_quantized_as_the_reference_does(rows: int, width: int, dtype: torch.dtype) -> None:
    residual, weight = torch.randn(rows, width), torch.randn(width)
    out = torch.empty(rows, width, dtype=dtype)
    codes, scales = torch.zeros(rows, width, dtype=torch.uint8), torch.full((rows,), torch.nan)
    op = norm(residual.data_ptr(), len(weight), weight, 1e-5, out_rows(out), dtype, quantized=out_rows(codes, scales))
    run(op, rows=rows)
    expected, expected_scales = quantize_rows(out)
    assert torch.equal(codes, expected)
    assert torch.equal(scales, expected_scales)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_normed_row_has_the_same_bits_beside_any_number_of_others(dtype: torch.dtype) -> None:
    residual, weight = torch.randn(70, 100), torch.randn(100)
    whole = torch.empty(70, 100, dtype=dtype)
    run(norm(residual.data_ptr(), len(weight), weight, 1e-5, out_rows(whole), dtype), rows=70)
    for rows in range(1, 70):
        out = torch.empty(rows, 100, dtype=dtype)
        start = 70 - rows
        run(norm(residual[start:].data_ptr(), len(weight), weight, 1e-5, out_rows(out), dtype), rows=rows)
        assert torch.equal(out, whole[start:])


def test_bfloat16_rounds_as_torch_does() -> None:
    values = torch.cat([torch.randn(1000), torch.tensor([1.00390625, 1.01171875, -1.00390625, 0.0])])
    # A row of ones keeps its weights: they are rounded, and nothing else.
    residual, out = torch.ones(1, len(values)), torch.empty(1, len(values), dtype=torch.bfloat16)
    run(norm(residual.data_ptr(), len(values), values, 0.0, out_rows(out), torch.bfloat16), rows=1)
    assert torch.equal(out[0], values.bfloat16())


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_a_tap_writes_each_row_to_its_place_and_no_other_column(
    rows: int, width: int, dtype: torch.dtype, normed: bool
) -> None:
    residual, weight = torch.randn(rows, width) * 3, torch.randn(width)
    out = torch.full((rows + 1, 3 * width), torch.nan, dtype=dtype)
    places = np.random.default_rng(1).permutation(rows).astype(np.int32)
    middle = Rows(out.data_ptr() + width * out.itemsize, 3 * width * out.itemsize)
    op = tap(residual.data_ptr(), width, middle, dtype, *((weight, 1e-5) if normed else ()))
    run(op, rows=rows, feature_rows=places.ctypes.data)
    written = out[places.tolist(), width : 2 * width]
    if normed:
        expected = reference.add_norm(residual, None, weight, 1e-5)[1]
        torch.testing.assert_close(written.float(), expected, rtol=TOLERANCE[dtype], atol=1e-6)
    else:
        assert torch.equal(written, residual.to(dtype))
    assert out[:, :width].isnan().all() and out[:, 2 * width :].isnan().all() and out[rows].isnan().all()
