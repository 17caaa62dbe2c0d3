"""Linears over coded weights in Triton. Knows nothing of files and formats: codes come as
models/quantized/stored.py keeps them.

    quantize_rows, quantize_rows_fp8   activations into codes, a scale for each row or group of neighbours
    linear_int8    int8 · int8, sums exact in int32: the tile may follow the rows
    linear_fp8     e4m3 · e4m3, sums of a group in float32, then the group's scales; sm_89 and later
    linear_coded   codes made numbers of x's dtype on their way into the matrix unit: less to read for few rows

All but linear_int8 keep the tile and the cuts of K that follow from the weight's shape (kernels/gemm), so a row's
bits depend on the row and the weight alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.ahead_of_time import Compilation, signature_of
from kernels.dependent import prefetch_weight, start_next_early, wait_for_kernel_before
from kernels.gemm.ending import put
from kernels.gemm.fused import BLOCK_M, range_length
from kernels.gemm.ranges import Product, Ranges, partial_sums, put_range
from kernels.launch import ceil_div, launch, power_of_two
from kernels.quant.reference import E4M3, INT8, SMALLEST

# Compute capability from which matrix units multiply e4m3.
FP8_FROM = 89
# Programs of `linear_int8` that keep a GPU busy.
_ENOUGH_PROGRAMS = 128
KINDS = {torch.int8: 0, torch.float8_e4m3fn: 1, torch.uint8: 2}


@triton.jit
def _whole(x):
    """The nearest whole number, ties to even: adding 1.5 · 2²³ leaves no bits for a part."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def from_e4m3(byte):
    """The number that these 8 bits stand for, in float32. By hand: older chips and the interpreter know no e4m3.
    Put into a float32's sign, exponent and fraction, they stand for 2^-120 times as much."""
    wide = byte.to(tl.int32)
    bits = ((wide << 24) >> 4) & ~0x780FFFFF
    value = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36
    return tl.where((wide & 0x7F) == 0x7F, float("nan"), value)


@triton.jit
def to_e4m3(value):
    """The 8 bits of the nearest e4m3, ties to even, of a float32 of at most 448."""
    bits = value.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    # 3 bits of the fraction stay, and the exponent's zero moves from 127 to 7.
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    tiny = _whole(tl.abs(value) * 512.0).to(tl.int32)
    code = tl.where(tl.abs(value) < 0.015625, tiny, normal)
    code = tl.where(value == value, code, 0x7F)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def quantize_rows_kernel(x, codes, scales, width: tl.constexpr, stride: tl.constexpr, LARGEST: tl.constexpr,
                         SMALLEST: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    start_next_early()
    wait_for_kernel_before()
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    values = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(values), axis=0), SMALLEST), LARGEST)
    whole = _whole(tl.div_rn(values, scale))
    whole = tl.minimum(tl.maximum(whole, -LARGEST), LARGEST)
    tl.store(codes + row * width + at, whole.to(tl.int8), mask=inside)
    tl.store(scales + row, scale)


@triton.jit
def quantize_groups_kernel(x, codes, scales, width: tl.constexpr, stride: tl.constexpr, LARGEST: tl.constexpr,
                           SMALLEST: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    start_next_early()
    wait_for_kernel_before()
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    at = group * GROUP + lane
    inside = (lane < GROUP) & (at < width)
    values = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(values), axis=0), SMALLEST), LARGEST)
    coded = tl.minimum(tl.maximum(tl.div_rn(values, scale), -LARGEST), LARGEST)
    tl.store(codes + row * width + at, to_e4m3(coded), mask=inside)
    tl.store(scales + row * tl.num_programs(1) + group, scale)


@triton.jit(do_not_specialize=["rows"])
def linear_int8_kernel(
    x, row_scales, weight, scales, bias, out, rows, columns: tl.constexpr, inputs: tl.constexpr,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    if tl.num_programs(0) == 1:
        start_next_early()
    prefetch_weight(weight, columns, inputs, 0, inputs, BLOCK_N)
    wait_for_kernel_before()
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    x_rows, weight_rows = x + m.to(tl.int64)[:, None] * inputs, weight + n.to(tl.int64)[None, :] * inputs
    for start in range(0, inputs, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        a = tl.load(x_rows + k[None, :], mask=(m < rows)[:, None] & (k < inputs)[None, :], other=0)
        b = tl.load(weight_rows + k[:, None], mask=(n < columns)[None, :] & (k < inputs)[:, None], other=0)
        total = tl.dot(a, b, total, out_dtype=tl.int32)
    of_rows = tl.load(row_scales + m, mask=m < rows, other=0.0)[:, None]
    of_columns = tl.load(scales + n, mask=n < columns, other=0.0)[None, :]
    value = total.to(tl.float32) * of_rows * of_columns
    if HAS_BIAS:
        value += tl.load(bias + n, mask=n < columns, other=0.0).to(tl.float32)[None, :]
    inside = (m < rows)[:, None] & (n < columns)[None, :]
    tl.store(out + m.to(tl.int64)[:, None] * columns + n[None, :], value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _fp8_range(
    x, row_scales, weight, scales, rows, columns: tl.constexpr, inputs: tl.constexpr, m, n, first, last,
    GROUPS: tl.constexpr, GROUP: tl.constexpr, ROWS_OF_A_SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Steps of K that lie within a group each: the sum of a step, times its scales, is added in float32."""
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    x_rows, weight_rows = x + m.to(tl.int64)[:, None] * inputs, weight + n.to(tl.int64)[None, :] * inputs
    of_rows, of_columns = row_scales + m * GROUPS, scales + n // ROWS_OF_A_SCALE * GROUPS
    row_scale = tl.load(of_rows + first // GROUP, mask=m < rows, other=0.0)
    scale = tl.load(of_columns + first // GROUP, mask=n < columns, other=0.0)
    for start in range(first, last, BLOCK_K):
        # Load the next step's scales early.
        ahead = tl.minimum(start + BLOCK_K, inputs - 1) // GROUP
        row_scale_ahead = tl.load(of_rows + ahead, mask=m < rows, other=0.0)
        scale_ahead = tl.load(of_columns + ahead, mask=n < columns, other=0.0)
        k = start + tl.arange(0, BLOCK_K)
        a = tl.load(x_rows + k[None, :], mask=(m < rows)[:, None] & (k < last)[None, :], other=0.0)
        b = tl.load(weight_rows + k[:, None], mask=(n < columns)[None, :] & (k < last)[:, None], other=0.0)
        total += tl.dot(a, b, out_dtype=tl.float32) * row_scale[:, None] * scale[None, :]
        row_scale, scale = row_scale_ahead, scale_ahead
    return total


@triton.jit(do_not_specialize=["rows"])
def linear_fp8_kernel(
    x, row_scales, weight, scales, bias, out, rows, columns: tl.constexpr, inputs: tl.constexpr,
    range_length: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr, ROWS_OF_A_SCALE: tl.constexpr,
    APART: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """As kernels/gemm: a tile of the output, or of one range's sums."""
    if tl.num_programs(0) == 1:
        start_next_early()
    prefetch_weight(weight, columns, inputs, tl.program_id(2) * range_length, range_length, BLOCK_N)
    wait_for_kernel_before()
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    if APART:
        split = tl.program_id(2)
        first = split * range_length
        total = _fp8_range(
            x, row_scales, weight, scales, rows, columns, inputs, m, n, first,
            tl.minimum(first + range_length, inputs), GROUPS, GROUP, ROWS_OF_A_SCALE, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        put_range(total, out, rows, columns, m, n, split)
    else:
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for first in range(0, inputs, range_length):
            total += _fp8_range(
                x, row_scales, weight, scales, rows, columns, inputs, m, n, first,
                tl.minimum(first + range_length, inputs), GROUPS, GROUP, ROWS_OF_A_SCALE, BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
        put(total, bias, out, rows, columns, m, tl.program_id(1) * BLOCK_N, HAS_BIAS)


@triton.jit
def _numbers(raw, scale, zero, half: tl.constexpr, KIND: tl.constexpr):
    """(code − zero) · scale in float32. A whole number is put into the last bits of 2²³, which is then taken away with
    the zero: exact, and faster than a conversion. The high half of a byte stays where it is, as 16 times its code."""
    if KIND == 1:
        return (from_e4m3(raw) - zero) * scale
    elif KIND == 2:
        bits = (raw.to(tl.int32) | 0x4B000000) & (0x7F0000F0 if half == 1 else 0x7F00000F)
        zero, scale = zero * (15 * half + 1), scale * (1 - 0.9375 * half)
        return (bits.to(tl.float32, bitcast=True) - (zero + 8388608.0)) * scale
    else:
        bits = (raw.to(tl.int32) & 255) ^ 0x4B000080
        return (bits.to(tl.float32, bitcast=True) - (zero + 8388736.0)) * scale


@triton.jit
def _of_group(
    scales, zeros, n, group, known, KIND: tl.constexpr, GROUPS: tl.constexpr, ROWS_OF_A_SCALE: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
):  # fmt: skip
    """Scale and zero of columns n in a group, in float32."""
    scale = tl.load(scales + n // ROWS_OF_A_SCALE * GROUPS + group, mask=known, other=0.0).to(tl.float32)
    if HAS_ZEROS:
        zero = tl.load(zeros + n * GROUPS + group, mask=known, other=0).to(tl.float32)
    else:
        zero = tl.zeros_like(scale) + (8.0 if KIND == 2 else 0.0)
    return scale, zero


@triton.jit
def coded_range(
    x, codes, scales, zeros, groups, rows, columns: tl.constexpr, inputs: tl.constexpr, x_stride: tl.constexpr,
    m, n, first, last, KIND: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr, ROWS_OF_A_SCALE: tl.constexpr,
    HAS_ZEROS: tl.constexpr, HAS_GROUPS: tl.constexpr, ONE_GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """weight[n, first:last] · x[m, first:last]ᵀ, [N, M]: the matrix unit takes its left side from registers, where
    codes become numbers. A byte of two codes is multiplied half by half (`halves_apart`)."""
    PER_BYTE: tl.constexpr = 2 if KIND == 2 else 1
    PART: tl.constexpr = BLOCK_K // PER_BYTE
    BYTES: tl.constexpr = (inputs + BLOCK_K - 1) // BLOCK_K * PART if KIND == 2 else inputs
    known = (n < columns)[:, None]
    column, to_x = n.to(tl.int64)[:, None], x + m.to(tl.int64)[None, :] * x_stride
    total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    if ONE_GROUP:
        scale, zero = _of_group(
            scales, zeros, n[:, None], first // GROUP, known, KIND, GROUPS, ROWS_OF_A_SCALE, HAS_ZEROS
        )
    for start in range(first, last, BLOCK_K):
        byte = start // PER_BYTE + tl.arange(0, PART)
        raw = tl.load(codes + column * BYTES + byte[None, :], mask=known & (byte < BYTES)[None, :], other=0)
        if ONE_GROUP and GROUPS > 1:
            # Load the next step's scale and zero early.
            ahead = tl.minimum(start + BLOCK_K, inputs - 1) // GROUP
            scale_ahead, zero_ahead = _of_group(
                scales, zeros, n[:, None], ahead, known, KIND, GROUPS, ROWS_OF_A_SCALE, HAS_ZEROS
            )
        for half in tl.static_range(PER_BYTE):
            k = start + half * PART + tl.arange(0, PART)
            if not ONE_GROUP:
                group = tl.load(groups + k, mask=k < inputs, other=0) if HAS_GROUPS else k // GROUP
                scale, zero = _of_group(
                    scales, zeros, n[:, None], group[None, :], known & (k < inputs)[None, :], KIND, GROUPS,
                    ROWS_OF_A_SCALE, HAS_ZEROS,
                )  # fmt: skip
            value = _numbers(raw, scale, zero, half, KIND).to(x.dtype.element_ty)
            b = tl.load(to_x + k[:, None], mask=(m < rows)[None, :] & (k < last)[:, None], other=0.0)
            if IEEE:
                total = tl.dot(value.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
            else:
                total = tl.dot(value, b, total)
        if ONE_GROUP and GROUPS > 1:
            scale, zero = scale_ahead, zero_ahead
    return total


@triton.jit(do_not_specialize=["rows"])
def linear_coded_kernel(
    x, codes, scales, zeros, groups, bias, out, rows,
    columns: tl.constexpr, inputs: tl.constexpr, x_stride: tl.constexpr, range_length: tl.constexpr,
    KIND: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr, ROWS_OF_A_SCALE: tl.constexpr,
    HAS_ZEROS: tl.constexpr, HAS_GROUPS: tl.constexpr, ONE_GROUP: tl.constexpr,
    APART: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """As kernels/gemm: a tile of the output, or of one range's sums."""
    PER_BYTE: tl.constexpr = 2 if KIND == 2 else 1
    BYTES: tl.constexpr = (inputs + BLOCK_K - 1) // BLOCK_K * BLOCK_K // PER_BYTE if KIND == 2 else inputs
    if tl.num_programs(0) == 1:
        start_next_early()
    STEP: tl.constexpr = range_length // PER_BYTE
    prefetch_weight(codes, columns, BYTES, tl.program_id(2) * STEP, STEP, BLOCK_N)
    wait_for_kernel_before()
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    if APART:
        split = tl.program_id(2)
        first = split * range_length
        total = coded_range(
            x, codes, scales, zeros, groups, rows, columns, inputs, x_stride, m, n, first,
            tl.minimum(first + range_length, inputs), KIND, GROUPS, GROUP, ROWS_OF_A_SCALE, HAS_ZEROS, HAS_GROUPS,
            ONE_GROUP, BLOCK_M, BLOCK_N, BLOCK_K, IEEE,
        )  # fmt: skip
        put_range(tl.trans(total), out, rows, columns, m, n, split)
    else:
        total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
        for first in range(0, inputs, range_length):
            total += coded_range(
                x, codes, scales, zeros, groups, rows, columns, inputs, x_stride, m, n, first,
                tl.minimum(first + range_length, inputs), KIND, GROUPS, GROUP, ROWS_OF_A_SCALE, HAS_ZEROS, HAS_GROUPS,
                ONE_GROUP, BLOCK_M, BLOCK_N, BLOCK_K, IEEE,
            )  # fmt: skip
        put(tl.trans(total), bias, out, rows, columns, m, tl.program_id(1) * BLOCK_N, HAS_BIAS)


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[R, K] -> [R, K] int8, [R] float32."""
    assert x.stride(1) == 1
    rows, width = x.shape
    codes = torch.empty(rows, width, dtype=torch.int8, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    block = power_of_two(width)
    launch(
        quantize_rows_kernel, (rows,), x, codes, scales, width=width, stride=x.stride(0), LARGEST=INT8,
        SMALLEST=SMALLEST, BLOCK=block, warps=min(max(block // 512, 1), 16),
    )  # fmt: skip
    return codes, scales


def quantize_rows_fp8(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[R, K] -> [R, K] float8_e4m3fn, [R, K / group rounded up] float32."""
    assert x.stride(1) == 1
    rows, width = x.shape
    groups, block = ceil_div(width, group), power_of_two(group)
    codes = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, groups, dtype=torch.float32, device=x.device)
    launch(
        quantize_groups_kernel, (rows, groups), x, codes.view(torch.uint8), scales,
        width=width, stride=x.stride(0), LARGEST=E4M3, SMALLEST=SMALLEST, GROUP=group, BLOCK=block,
        warps=min(max(block // 512, 1), 16),
    )  # fmt: skip
    return codes, scales


def linear_int8(
    codes: torch.Tensor,  # [R, K] int8
    row_scales: torch.Tensor,  # [R] float32
    weight: torch.Tensor,  # [N, K] int8
    scales: torch.Tensor,  # [N] float32
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:  # [R, N]
    (rows, inputs), columns = codes.shape, len(weight)
    out = torch.empty(rows, columns, dtype=out_dtype, device=codes.device)
    tile = int8_tile_of(rows, columns)
    grid = (ceil_div(rows, tile["BLOCK_M"]), ceil_div(columns, tile["BLOCK_N"]))
    added = row_scales if bias is None else bias
    launch(
        linear_int8_kernel, grid, codes, row_scales, weight, scales, added, out, rows,
        columns=columns, inputs=inputs, HAS_BIAS=bias is not None, **tile,
    )  # fmt: skip
    return out


def linear_fp8(
    codes: torch.Tensor,  # [R, K] float8_e4m3fn
    row_scales: torch.Tensor,  # [R, groups] float32
    weight: torch.Tensor,  # [N, K] float8_e4m3fn
    scales: torch.Tensor,  # [N / block_rows rounded up, groups] float32
    block_rows: int,
    group: int,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.float32,
) -> Product:  # [R, N]
    (rows, inputs), columns, groups = codes.shape, len(weight), scales.shape[1]
    assert row_scales.shape[1] == groups == ceil_div(inputs, group)
    tile = fp8_tile_of(inputs, group)
    length = range_length(columns, inputs, tile["BLOCK_N"], tile["BLOCK_K"])
    added = row_scales if bias is None else bias
    tiles = ceil_div(columns, tile["BLOCK_N"])
    splits = ceil_div(inputs, length)
    partial = partial_sums(rows, columns, splits, BLOCK_M, codes.device)
    out = torch.empty(rows, columns, dtype=out_dtype, device=codes.device) if partial is None else partial
    launch(
        linear_fp8_kernel, (ceil_div(rows, BLOCK_M), tiles, 1 if partial is None else splits),
        codes, row_scales, weight, scales, added, out, rows,
        columns=columns, inputs=inputs, range_length=length, GROUPS=groups, GROUP=group, ROWS_OF_A_SCALE=block_rows,
        APART=partial is not None, HAS_BIAS=bias is not None and partial is None, **tile,
    )  # fmt: skip
    return out if partial is None else Ranges(partial, bias, out_dtype)


def halves_apart(codes: torch.Tensor, inputs: int, group: int, dtype: torch.dtype) -> torch.Tensor:
    """Codes as `linear_coded` reads them. Of two codes in a byte [..., K/2 rounded up], neighbours as they are stored,
    the second comes from half a step of K further on, so that each half meets inputs that are neighbours; K is filled
    up to whole steps. Others stay. `group` 0: inputs belong to groups in any order."""
    if codes.dtype != torch.uint8:
        return codes
    step = coded_tile_of(inputs, group, dtype)["BLOCK_K"]
    single = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
    filled = torch.nn.functional.pad(single, (0, ceil_div(inputs, step) * step - single.shape[-1]))
    low, high = filled.unflatten(-1, (-1, 2, step // 2)).unbind(-2)
    return (low | high << 4).flatten(-2)


def linear_coded(
    x: torch.Tensor,  # [R, K]
    codes: torch.Tensor,  # [N, K] int8 or float8_e4m3fn, or [N, K/2 in whole steps] uint8 (`halves_apart`)
    scales: torch.Tensor,  # [N / block_rows rounded up, groups]
    zeros: torch.Tensor | None = None,  # [N, groups]
    groups: torch.Tensor | None = None,  # [K]
    group_size: int = 0,
    block_rows: int = 1,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Product:  # [R, N]
    assert x.stride(1) == 1 and codes.is_contiguous()
    (rows, inputs), columns, dtype = x.shape, len(codes), out_dtype or x.dtype
    group, kind = group_size or inputs, KINDS[codes.dtype]
    tile = coded_tile_of(inputs, 0 if groups is not None else group, x.dtype)
    length = range_length(columns, inputs, tile["BLOCK_N"], tile["BLOCK_K"])
    added = scales if bias is None else bias
    constants = {
        "columns": columns, "inputs": inputs, "x_stride": x.stride(0), "range_length": length, "KIND": kind,
        "GROUPS": scales.shape[1], "GROUP": group, "ROWS_OF_A_SCALE": block_rows,
        "HAS_ZEROS": zeros is not None, "HAS_GROUPS": groups is not None,
    }  # fmt: skip
    assert kind != 2 or codes.shape[1] == ceil_div(inputs, tile["BLOCK_K"]) * tile["BLOCK_K"] // 2
    raw = codes.view(torch.uint8) if kind == 1 else codes
    tiles = ceil_div(columns, tile["BLOCK_N"])
    splits = ceil_div(inputs, length)
    partial = partial_sums(rows, columns, splits, BLOCK_M, x.device)
    out = torch.empty(rows, columns, dtype=dtype, device=x.device) if partial is None else partial
    launch(
        linear_coded_kernel, (ceil_div(rows, BLOCK_M), tiles, 1 if partial is None else splits),
        x, raw, scales, scales if zeros is None else zeros, scales if groups is None else groups, added,
        out, rows, **constants,
        APART=partial is not None, HAS_BIAS=bias is not None and partial is None, **tile,
    )  # fmt: skip
    return out if partial is None else Ranges(partial, bias, dtype)


def int8_tile_of(rows: int, columns: int) -> dict[str, int]:
    """Sums of whole numbers are exact, so the tile may follow the rows: the widest that makes enough programs."""
    # As if they were a power of two, so that those are all that must be compiled.
    rows = power_of_two(rows)
    m = 16 if rows <= 16 else 64 if rows <= 256 else 128
    widths = [n for n in (32, 64, 128) if n == 32 or ceil_div(rows, m) * ceil_div(columns, n) >= _ENOUGH_PROGRAMS]
    n = min(widths[-1], 64) if m == 16 else widths[-1]
    # With a narrow tile longer steps, so that as many bytes are on their way.
    return {
        "BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 256 if n == 32 else 128, "stages": 3 if n == 128 else 4,
        "warps": 8 if n == 128 else 4,
    }  # fmt: skip


def fp8_tile_of(inputs: int, group: int) -> dict[str, int]:
    """A step of K lies within a group: 128 at most, for sums of e4m3 products are kept in few bits on sm_90."""
    block_k = 128
    while group % block_k and group < inputs:
        block_k //= 2
    assert block_k >= 32, f"groups of {group} inputs: the matrix unit takes 32 at once"
    return {"BLOCK_M": BLOCK_M, "BLOCK_N": 64, "BLOCK_K": block_k, "stages": 3}


def coded_tile_of(inputs: int, group: int, dtype: torch.dtype) -> dict[str, int]:
    """`group` 0: inputs belong to groups in any order."""
    ieee = dtype == torch.float32
    block_k = 64 if ieee else 128
    if group and group < inputs:
        # A step within one group, if it doesn't make steps too small for the matrix unit.
        while group % block_k and block_k > 32:
            block_k //= 2
    one = bool(group) and (group >= inputs or group % block_k == 0)
    return {
        "ONE_GROUP": one, "BLOCK_M": BLOCK_M, "BLOCK_N": 32 if ieee else 128, "BLOCK_K": block_k,
        "IEEE": ieee, "stages": 2 if ieee else 3, "warps": 8,
    }  # fmt: skip


def compilations(arch: int) -> Iterator[Compilation]:
    types = dict.fromkeys(("scales", "row_scales"), "*fp32") | dict.fromkeys(("bias", "out"), "*bf16") | {"rows": "i32"}
    shape = {"columns": 4096, "inputs": 7168}

    def one(name: str, kernel: Any, constants: dict[str, Any], **pointers: str) -> Compilation:
        sizes = {key: constants[key] for key in ("warps", "stages") if key in constants}
        constants = {key: value for key, value in constants.items() if key not in sizes}
        return Compilation(name, kernel, signature_of(kernel, types | pointers, constants), constants, **sizes)

    row = {"width": 7168, "stride": 7168, "LARGEST": INT8, "SMALLEST": SMALLEST, "BLOCK": 8192, "warps": 16}
    yield one("quantize_rows", quantize_rows_kernel, row, x="*bf16", codes="*i8")
    row |= {"LARGEST": E4M3, "GROUP": 128, "BLOCK": 128, "warps": 1}
    yield one("quantize_groups", quantize_groups_kernel, row, x="*bf16", codes="*u8")
    for rows in (1, 64, 512):
        tile = shape | {"HAS_BIAS": True} | int8_tile_of(rows, shape["columns"])
        yield one(f"linear_int8 {rows} rows", linear_int8_kernel, tile, x="*i8", weight="*i8")
    for name, group, of in (("blocks", 128, 128), ("one scale", 7168, 4096)) if arch >= FP8_FROM else ():
        tile = shape | {"GROUPS": 7168 // group, "GROUP": group, "ROWS_OF_A_SCALE": of, "HAS_BIAS": True}
        tile |= fp8_tile_of(7168, group)
        tile |= {"range_length": range_length(4096, 7168, tile["BLOCK_N"], tile["BLOCK_K"])}
        for apart in (False, True):
            told = f"linear_fp8 {name}{' in ranges' if apart else ''}"
            tile |= {"APART": apart, "HAS_BIAS": not apart}
            out = "*fp32" if apart else "*bf16"
            yield one(told, linear_fp8_kernel, tile, x="*fp8e4nv", weight="*fp8e4nv", out=out)
    for name, kind, groups, has_zeros, any_order in (
        ("int8", 0, 1, False, False),
        ("fp8", 1, 56, False, False),
        ("int4", 2, 56, True, False),
        ("int4 in any order", 2, 56, True, True),
    ):
        group = 7168 // groups
        tile = shape | coded_tile_of(7168, 0 if any_order else group, torch.bfloat16) | {"KIND": kind}
        tile |= {"x_stride": 7168, "GROUPS": groups, "GROUP": group, "ROWS_OF_A_SCALE": 128 if kind == 1 else 1}
        tile |= {"HAS_ZEROS": has_zeros, "HAS_GROUPS": any_order, "HAS_BIAS": True}
        tile |= {"range_length": range_length(4096, 7168, tile["BLOCK_N"], tile["BLOCK_K"])}
        pointers = {"x": "*bf16", "codes": "*i8" if kind == 0 else "*u8", "zeros": "*i16", "groups": "*i32"}
        for apart in (False, True) if name == "int4" else (False,):
            told = f"linear_coded {name}{' in ranges' if apart else ''}"
            tile |= {"APART": apart, "HAS_BIAS": not apart}
            yield one(told, linear_coded_kernel, tile, **pointers, out="*fp32" if apart else "*bf16")
