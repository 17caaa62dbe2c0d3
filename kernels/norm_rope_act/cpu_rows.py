"""The ops of the CPU program that look at one row: embed, RMSNorm of all rows or of the wanted ones, RMSNorm of what is
added to the residual, taps, and the wanted rows one behind the other.

The residual stream is float32. A norm writes rows of the model's type; where linears read bytes, it writes those,
too, with a scale a row (kernels/linear/cpu.py). A row never reads another one.
"""

from __future__ import annotations

import numba
import numpy as np
import torch

from kernels import cpu_vectors as v
from kernels.cpu_program import FEATURE_ROWS, ROWS, TOKENS, WANTED, WANTED_COUNT, Op, op, op_chunks
from kernels.linear.cpu import Rows, quantize_row
from kernels.linear.tiles import LANES

# Rows of a chunk.
_ROWS = 4

(
    TABLE, TABLE_BFLOAT16, RESIDUAL, WIDTH, WEIGHT, EPSILON, OUT, OUT_BFLOAT16, WANTED_ONLY, BYTES, SCALES, OUT_STRIDE,
    FIRST, ENTRIES, ROWS_AT, SCALE, _WORDS,
) = range(17)  # fmt: skip


@op_chunks
def rows_chunks(args, step):
    return (v.word(step, v.word(args, ROWS_AT)) + _ROWS - 1) // _ROWS


@numba.njit(error_model="numpy")
def clear_row(to, width):
    for i in range(0, width, LANES):
        v.store_part(to, i, v.zeros(), width - i, False)


@op
def embed_rows(args, step, chunk, thread):
    width, first, entries = v.word(args, WIDTH), v.word(args, FIRST), v.word(args, ENTRIES)
    scale = v.spread(v.float_in(v.word(args, SCALE)))
    for row in range(chunk * _ROWS, min(chunk * _ROWS + _ROWS, v.word(step, ROWS))):
        token = np.int64(v.load_i32(v.word(step, TOKENS), row)) - first
        to = v.word(args, RESIDUAL) + row * width * 4
        if token < 0 or token >= entries:
            clear_row(to, width)
            continue
        at = token * width
        for i in range(0, width, LANES):
            value = v.load_part(v.word(args, TABLE), at + i, width - i, v.word(args, TABLE_BFLOAT16) != 0)
            v.store_part(to, i, value * scale, width - i, False)


@numba.njit(error_model="numpy")
def rms_norm(x, x_bfloat16, weight, epsilon, width, to, to_bfloat16):
    """to = x / sqrt(mean x² + epsilon) · weight, of one row; in place where both are of one type."""
    squares = v.zeros()
    for i in range(0, width, LANES):
        value = v.load_part(x, i, width - i, x_bfloat16)
        squares = v.multiply_add(value, value, squares)
    scale = v.spread(np.float32(1.0) / np.sqrt(v.total(squares) / np.float32(width) + epsilon))
    for i in range(0, width, LANES):
        value = v.load_part(x, i, width - i, x_bfloat16) * scale * v.load_part(weight, i, width - i, False)
        v.store_part(to, i, value, width - i, to_bfloat16)


@numba.njit(error_model="numpy")
def copy_row(x, width, to, to_bfloat16):
    """to = x, float32."""
    for i in range(0, width, LANES):
        v.store_part(to, i, v.load_part(x, i, width - i, False), width - i, to_bfloat16)


@op
def norm_rows(args, step, chunk, thread):
    width, bfloat16 = v.word(args, WIDTH), v.word(args, OUT_BFLOAT16) != 0
    wanted = v.word(args, WANTED_ONLY) != 0
    for row in range(chunk * _ROWS, min(chunk * _ROWS + _ROWS, v.word(step, v.word(args, ROWS_AT)))):
        source = v.word(v.word(step, WANTED), row) if wanted else row
        x = v.word(args, RESIDUAL) + source * width * 4
        to = v.word(args, OUT) + row * v.word(args, OUT_STRIDE)
        if v.word(args, WEIGHT) != 0:
            rms_norm(x, False, v.word(args, WEIGHT), v.float_in(v.word(args, EPSILON)), width, to, bfloat16)
        else:
            copy_row(x, width, to, bfloat16)
        if v.word(args, BYTES) != 0:
            scale = quantize_row(to, bfloat16, width, v.word(args, BYTES) + row * width)
            v.store_f32(v.word(args, SCALES), row, scale)


@op
def add_normed_rows(args, step, chunk, thread):
    width, weight = v.word(args, WIDTH), v.word(args, WEIGHT)
    for row in range(chunk * _ROWS, min(chunk * _ROWS + _ROWS, v.word(step, v.word(args, ROWS_AT)))):
        given, to = v.word(args, TABLE) + row * width * 4, v.word(args, RESIDUAL) + row * width * 4
        rms_norm(given, False, weight, v.float_in(v.word(args, EPSILON)), width, given, False)
        for i in range(0, width, LANES):
            value = v.load_part(to, i, width - i, False) + v.load_part(given, i, width - i, False)
            v.store_part(to, i, value, width - i, False)


@op
def tap_rows(args, step, chunk, thread):
    width, bfloat16 = v.word(args, WIDTH), v.word(args, OUT_BFLOAT16) != 0
    for row in range(chunk * _ROWS, min(chunk * _ROWS + _ROWS, v.word(step, ROWS))):
        x = v.word(args, RESIDUAL) + row * width * 4
        place = np.int64(v.load_i32(v.word(step, FEATURE_ROWS), row))
        to = v.word(args, OUT) + place * v.word(args, OUT_STRIDE)
        if v.word(args, WEIGHT) != 0:
            rms_norm(x, False, v.word(args, WEIGHT), v.float_in(v.word(args, EPSILON)), width, to, bfloat16)
        else:
            copy_row(x, width, to, bfloat16)


@op
def take_rows(args, step, chunk, thread):
    width = v.word(args, WIDTH)
    for row in range(chunk * _ROWS, min(chunk * _ROWS + _ROWS, v.word(step, ROWS))):
        place = np.int64(v.load_i32(v.word(step, FEATURE_ROWS), row))
        copy_row(v.word(args, TABLE) + place * width * 4, width, v.word(args, RESIDUAL) + row * width * 4, False)


@op
def wanted_rows(args, step, chunk, thread):
    width = v.word(args, WIDTH)
    for row in range(chunk * _ROWS, min(chunk * _ROWS + _ROWS, v.word(step, WANTED_COUNT))):
        source = v.word(args, TABLE) + v.word(v.word(step, WANTED), row) * width * 4
        copy_row(source, width, v.word(args, OUT) + row * width * 4, False)


@op
def gate_rows(args, step, chunk, thread):
    width, bfloat16 = v.word(args, WIDTH), v.word(args, OUT_BFLOAT16) != 0
    for row in range(chunk * _ROWS, min(chunk * _ROWS + _ROWS, v.word(step, ROWS))):
        to = v.word(args, OUT) + row * v.word(args, OUT_STRIDE)
        for i in range(0, width, LANES):
            gate = v.load_part(v.word(args, TABLE), row * width + i, width - i, bfloat16)
            value = v.load_part(to, i, width - i, bfloat16) / (v.spread(1.0) + v.exps(v.zeros() - gate))
            v.store_part(to, i, value, width - i, bfloat16)


@op
def add_gated_rows(args, step, chunk, thread):
    width = v.word(args, WIDTH)
    for row in range(chunk * _ROWS, min(chunk * _ROWS + _ROWS, v.word(step, ROWS))):
        given, to = v.word(args, TABLE) + row * width * 4, v.word(args, RESIDUAL) + row * width * 4
        share = v.spread(1.0) / (v.spread(1.0) + v.exps(v.zeros() - v.spread(v.load_f32(v.word(args, WEIGHT), row))))
        for i in range(0, width, LANES):
            value = v.multiply_add(v.load_part(given, i, width - i, False), share, v.load_part(to, i, width - i, False))
            v.store_part(to, i, value, width - i, False)


@op
def clear_rows(args, step, chunk, thread):
    width = v.word(args, WIDTH)
    for row in range(chunk * _ROWS, min(chunk * _ROWS + _ROWS, v.word(step, ROWS))):
        clear_row(v.word(args, RESIDUAL) + row * width * 4, width)


def embed(table: torch.Tensor, residual: int, first: int = 0, scale: float = 1.0) -> Op:
    """residual[row] = table[token - first] · scale, or zeros where the table ends; table [entries, width] in bfloat16
    or float32."""
    words = [0] * _WORDS
    words[SCALE] = v.bits_of_float(scale)
    words[FIRST], words[ENTRIES] = first, len(table)
    words[TABLE], words[TABLE_BFLOAT16] = table.data_ptr(), int(table.dtype == torch.bfloat16)
    words[RESIDUAL], words[WIDTH] = residual, table.shape[1]
    return Op(embed_rows, rows_chunks, words, (table,))


def clear(residual: int, width: int) -> Op:
    """residual[row] = 0."""
    words = [0] * _WORDS
    words[RESIDUAL], words[WIDTH] = residual, width
    return Op(clear_rows, rows_chunks, words)


def gate(x: Rows, gates: int, width: int, dtype: torch.dtype) -> Op:
    """x[row] *= sigmoid(gates[row]); gates [rows, width], both in `dtype`."""
    words = [0] * _WORDS
    words[OUT], words[OUT_STRIDE], words[OUT_BFLOAT16] = x.address, x.stride, int(dtype == torch.bfloat16)
    words[TABLE], words[WIDTH], words[ROWS_AT] = gates, width, ROWS
    return Op(gate_rows, rows_chunks, words)


def add_gated(given: int, gates: int, residual: int, width: int) -> Op:
    """residual[row] += given[row] · sigmoid(gates[row]), all float32; one gate a row."""
    words = [0] * _WORDS
    words[TABLE], words[WEIGHT], words[RESIDUAL] = given, gates, residual
    words[WIDTH], words[ROWS_AT] = width, ROWS
    return Op(add_gated_rows, rows_chunks, words)


def take(source: int, residual: int, width: int) -> Op:
    """residual[row] = source[feature row], float32."""
    words = [0] * _WORDS
    words[TABLE], words[RESIDUAL], words[WIDTH] = source, residual, width
    return Op(take_rows, rows_chunks, words)


def wanted(source: int, out: int, width: int) -> Op:
    """out[i] = source[the wanted row i]; rows of `width` words of 32 bits."""
    words = [0] * _WORDS
    words[TABLE], words[OUT], words[WIDTH], words[ROWS_AT] = source, out, width, WANTED_COUNT
    return Op(wanted_rows, rows_chunks, words)


def norm(
    residual: int,
    width: int,
    weight: torch.Tensor | None,  # [width] float32
    epsilon: float,
    out: Rows,
    dtype: torch.dtype,
    quantized: Rows | None = None,
    wanted_only: bool = False,
    rows_at: int = ROWS,
) -> Op:
    """out = RMSNorm(residual), or without a weight the residual, in `dtype`, and as bytes where `quantized`; of the
    wanted rows, packed, or of as many as the step's word `rows_at` says."""
    words = [0] * _WORDS
    words[ROWS_AT] = WANTED_COUNT if wanted_only else rows_at
    words[RESIDUAL], words[WIDTH] = residual, width
    words[WANTED_ONLY], words[OUT_STRIDE] = int(wanted_only), out.stride
    words[OUT], words[OUT_BFLOAT16] = out.address, int(dtype == torch.bfloat16)
    if quantized is not None:
        words[BYTES], words[SCALES] = quantized.address, quantized.scales
    if weight is None:
        return Op(norm_rows, rows_chunks, words)
    assert len(weight) == width
    words[WEIGHT], words[EPSILON] = weight.data_ptr(), v.bits_of_float(epsilon)
    return Op(norm_rows, rows_chunks, words, (weight,))


def add_normed(
    given: int, residual: int, width: int, weight: torch.Tensor, epsilon: float, rows_at: int = ROWS
) -> Op:  # fmt: skip
    """residual[row] += RMSNorm(given[row]), float32, of as many rows as the step's word `rows_at` says; `given` is
    written over."""
    words = [0] * _WORDS
    words[ROWS_AT] = rows_at
    words[TABLE], words[RESIDUAL], words[WIDTH] = given, residual, width
    words[WEIGHT], words[EPSILON] = weight.data_ptr(), v.bits_of_float(epsilon)
    return Op(add_normed_rows, rows_chunks, words, (weight,))


def tap(
    residual: int, width: int, out: Rows, dtype: torch.dtype, weight: torch.Tensor | None = None, epsilon: float = 0.0
) -> Op:
    """out[feature row] = residual, or its RMSNorm where there is a weight [width] float32, in `dtype`."""
    words = [0] * _WORDS
    words[RESIDUAL], words[WIDTH] = residual, width
    words[OUT], words[OUT_STRIDE], words[OUT_BFLOAT16] = out.address, out.stride, int(dtype == torch.bfloat16)
    if weight is None:
        return Op(tap_rows, rows_chunks, words)
    words[WEIGHT], words[EPSILON] = weight.data_ptr(), v.bits_of_float(epsilon)
    return Op(tap_rows, rows_chunks, words, (weight,))
