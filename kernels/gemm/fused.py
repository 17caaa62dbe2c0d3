"""x·Wᵀ + b in Triton, batch-invariant: the bits of a row depend on the row and the weight alone.

The steps and cuts of K come from the weight's shape, never from the number of rows. K is cut into `splits`
ranges; a range is summed in steps of BLOCK_K, and the ranges' sums are added in ascending order. With few rows
each range is a program of its own (a weight of 4096 x 4096 would otherwise keep a third of the chip busy) and a second
kernel adds (ranges.py), or who reads the product; with many, one program walks all ranges. All do the same additions
in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.ahead_of_time import Compilation, signature_of
from kernels.dependent import prefetch_weight, start_next_early, wait_for_kernel_before
from kernels.gemm.ending import add_ranges_kernel, put, whole
from kernels.gemm.ranges import Product, Ranges, partial_sums, put_range
from kernels.gemm.tiles import Tile, measured
from kernels.launch import architecture, ceil_div, launch, power_of_two
from kernels.norm_rope_act.fused import ACTIVATIONS

# Rows of a tile, also for one row: 64 is what the matrix instructions of sm_90 and sm_100 take, and while a step
# waits for weights the arithmetic of empty rows is free (README.md).
BLOCK_M = 64
# Programs that keep any of the known chips busy. A constant, not the device's: bits must not depend on it.
_ENOUGH_PROGRAMS = 256
_MAX_SPLITS = 8
# Columns from which tiles of 128 are enough programs.
_WIDE = 8192
# A linear of many rows takes larger tiles if that makes at least MANY_PROGRAMS programs. They sum the same steps and
# ranges of K in the same order, so the bits are the same. Only a GPU can test that, so they are used on those
# architectures alone on which the test has passed.
MANY_PROGRAMS = 128
MANY_ON = (90,)
_MANY_M, _MANY_N, _MANY_STAGES = 128, 128, 3


@triton.jit
def _dot_range(
    x, weight, rows, columns: tl.constexpr, inputs: tl.constexpr, x_stride: tl.constexpr, m, n, first, last,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """x[m, first:last] · weight[n, first:last]ᵀ, in float32."""
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    x_rows = x + m.to(tl.int64)[:, None] * x_stride
    weight_rows = weight + n.to(tl.int64)[None, :] * inputs
    for start in range(first, last, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        a = tl.load(x_rows + k[None, :], mask=(m < rows)[:, None] & (k < last)[None, :], other=0.0)
        b = tl.load(weight_rows + k[:, None], mask=(n < columns)[None, :] & (k < last)[:, None], other=0.0)
        if IEEE:
            total = tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
        else:
            total = tl.dot(a, b, total)
    return total


@triton.jit(do_not_specialize=["rows"])
def linear_kernel(
    x, weight, bias, out, rows,
    columns: tl.constexpr, inputs: tl.constexpr, x_stride: tl.constexpr, range_length: tl.constexpr,
    APART: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, IEEE: tl.constexpr,
    ACTIVATION: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """A tile of the output; or, ranges apart, of one range's sums: out [splits, rows, columns] float32 (ranges.py)."""
    if tl.num_programs(0) == 1:
        start_next_early()
    prefetch_weight(weight, columns, inputs, tl.program_id(2) * range_length, range_length, BLOCK_N)
    wait_for_kernel_before()
    # Tiles of the same columns run beside each other: the weight is read once, and x stays in the cache.
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    if APART:
        split = tl.program_id(2)
        first = split * range_length
        last = tl.minimum(first + range_length, inputs)
        total = _dot_range(
            x, weight, rows, columns, inputs, x_stride, m, n, first, last, BLOCK_M, BLOCK_N, BLOCK_K, IEEE
        )
        put_range(total, out, rows, columns, m, n, split)
    else:
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for first in range(0, inputs, range_length):
            last = tl.minimum(first + range_length, inputs)
            total += _dot_range(
                x, weight, rows, columns, inputs, x_stride, m, n, first, last, BLOCK_M, BLOCK_N, BLOCK_K, IEEE
            )
        put(total, bias, out, rows, columns, m, tl.program_id(1) * BLOCK_N, HAS_BIAS, ACTIVATION, LIMIT)


@triton.jit(do_not_specialize=["rows"])
def linear_by_head_kernel(
    x, weight, out, rows,
    columns: tl.constexpr, inputs: tl.constexpr, x_stride: tl.constexpr, x_head: tl.constexpr,
    out_stride: tl.constexpr, out_head: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """A tile of one head's output, by that head's weight."""
    if tl.num_programs(0) == 1:
        start_next_early()
    own = weight + tl.program_id(2).to(tl.int64) * columns * inputs
    prefetch_weight(own, columns, inputs, 0, inputs, BLOCK_N)
    wait_for_kernel_before()
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    head = tl.program_id(2).to(tl.int64)
    total = _dot_range(
        x + head * x_head, own, rows, columns, inputs, x_stride, m, n, 0, inputs,
        BLOCK_M, BLOCK_N, BLOCK_K, IEEE,
    )  # fmt: skip
    inside = (m < rows)[:, None] & (n < columns)[None, :]
    to = out + head * out_head + m.to(tl.int64)[:, None] * out_stride + n[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=inside)


def linear(
    x: torch.Tensor,  # [R, K], rows may stand further apart
    weight: torch.Tensor,  # [N, K]
    bias: torch.Tensor | None = None,  # [N]
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,  # [R, N], contiguous
    tile: Tile | None = None,
    activation: str = "",
    limit: float = 0.0,
    many: bool | None = None,
) -> torch.Tensor:  # [R, N]
    """Into `out`, or a new tensor of `out_dtype`, or of x's dtype. `tile`: in place of the weight's own, to
    measure. `many`: whether to take the tile for many rows, however many there are, to compare their bits.

    With an `activation`, the weight's rows are gates and ups by turns (`interleaved`), and what `gated` makes of the
    rounded product is given: [R, N / 2]."""
    return whole(product(x, weight, bias, out_dtype, out, tile, activation, limit, many), out, activation, limit)


def product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
    tile: Tile | None = None,
    activation: str = "",
    limit: float = 0.0,
    many: bool | None = None,
) -> Product:
    """As `linear`, but ranges that are computed apart are left to be added, and the activation with them."""
    assert x.stride(1) == 1 and weight.is_contiguous() and x.shape[1] == weight.shape[1]
    (rows, inputs), columns, arch = x.shape, weight.shape[0], architecture(x.device)
    shape = rows, columns // 2 if activation else columns
    assert out is None or (out.shape == shape and out.is_contiguous())
    kept = (out_dtype or x.dtype) if out is None else out.dtype
    blocks, splits, length = tile_of(columns, inputs, torch.promote_types(x.dtype, weight.dtype), arch, tile)
    blocks |= for_many_rows(blocks, rows, columns, arch, many)
    partial = partial_sums(rows, columns, splits, BLOCK_M, x.device)
    if partial is None and out is None:
        out = torch.empty(shape, dtype=kept, device=x.device)
    to = out if partial is None else partial
    assert to is not None
    if rows:
        launch(
            linear_kernel,
            (ceil_div(rows, blocks["BLOCK_M"]), ceil_div(columns, blocks["BLOCK_N"]), 1 if partial is None else splits),
            x, weight, x if bias is None else bias, to, rows,
            columns=columns, inputs=inputs, x_stride=x.stride(0), range_length=length,
            APART=partial is not None, HAS_BIAS=bias is not None and partial is None,
            ACTIVATION=ACTIVATIONS.index(activation) if activation and partial is None else -1, LIMIT=float(limit),
            **blocks,
        )  # fmt: skip
    return to if partial is None else Ranges(partial, bias, kept)


def linear_by_head(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """out[r, h] = weight[h] · x[r, h]: [R, H, K], [H, N, K] -> [R, H, N], of which rows and heads may stand apart."""
    assert x.stride(2) == out.stride(2) == 1 and weight.is_contiguous()
    (rows, heads, inputs), columns = x.shape, weight.shape[1]
    tile = tile_of(columns, inputs, torch.promote_types(x.dtype, weight.dtype))[0]
    launch(
        linear_by_head_kernel, (ceil_div(rows, BLOCK_M), ceil_div(columns, tile["BLOCK_N"]), heads),
        x, weight, out, rows, columns=columns, inputs=inputs, x_stride=x.stride(0), x_head=x.stride(1),
        out_stride=out.stride(0), out_head=out.stride(1), **tile,
    )  # fmt: skip


def tile_of(
    columns: int, inputs: int, dtype: torch.dtype, arch: int = 0, tile: Tile | None = None
) -> tuple[dict[str, int], int, int]:
    """Tile, number of ranges of K and their length, of a weight [columns, inputs]: as measured on this architecture
    (tiles.py), or by rule."""
    found = tile or measured(arch, columns, inputs, str(dtype).removeprefix("torch."))
    if found is not None:
        length = range_length(columns, inputs, found.block_n, found.block_k, found.splits)
        blocks = {"BLOCK_M": BLOCK_M, "BLOCK_N": found.block_n, "BLOCK_K": found.block_k}
        blocks |= {"stages": found.stages, "warps": found.warps, "IEEE": dtype == torch.float32}
        return blocks, ceil_div(inputs, length), length
    block_n, block_k, stages = 64, 128, 3
    if dtype == torch.float32:
        block_n, block_k, stages = 32, 32, 2
    elif columns >= _WIDE:
        block_n, block_k, stages = 128, 64, 4
    length = range_length(columns, inputs, block_n, block_k)
    blocks = {"BLOCK_M": BLOCK_M, "BLOCK_N": block_n, "BLOCK_K": block_k, "stages": stages}
    blocks["IEEE"] = dtype == torch.float32
    return blocks, ceil_div(inputs, length), length


def for_many_rows(
    blocks: dict[str, int], rows: int, columns: int, arch: int, many: bool | None = None
) -> dict[str, int]:
    """What is another in a weight's tile where there are many rows. `many`: as in `linear`."""
    if many is None:
        programs = ceil_div(rows, _MANY_M) * ceil_div(columns, _MANY_N)
        many = arch in MANY_ON and rows > BLOCK_M and not blocks["IEEE"] and programs >= MANY_PROGRAMS
    return {"BLOCK_M": _MANY_M, "BLOCK_N": _MANY_N, "warps": 8, "stages": _MANY_STAGES} if many else {}


def rows_with_all_kernels(columns: int) -> int:
    """A linear of more rows than these needs no other kernels."""
    return max(2 * BLOCK_M, power_of_two(_MANY_M * ceil_div(MANY_PROGRAMS, ceil_div(columns, _MANY_N))))


def range_length(columns: int, inputs: int, block_n: int, block_k: int, splits: int = 0) -> int:
    """How long a range of K is, in whole steps, if K is cut into `splits` ranges; 0: into enough of them to keep a chip
    busy with one row."""
    if not splits:
        wanted = max(_ENOUGH_PROGRAMS // ceil_div(columns, block_n), 1)
        splits = min(wanted, _MAX_SPLITS, ceil_div(inputs, 4 * block_k))
    return ceil_div(ceil_div(inputs, splits), block_k) * block_k


def compilations(arch: int) -> Iterator[Compilation]:
    for kind, dtype, columns, activation in (
        ("bf16", torch.bfloat16, 4096, ""),
        ("bf16", torch.bfloat16, 3072, "silu"),
        ("bf16", torch.bfloat16, 28672, "silu"),
        ("fp32", torch.float32, 4096, ""),
    ):
        tile, splits, length = tile_of(columns, 4096, dtype)
        tile |= {"columns": columns, "inputs": 4096, "x_stride": 4096, "range_length": length, "HAS_BIAS": True}
        tile |= {"ACTIVATION": ACTIVATIONS.index(activation) if activation else -1, "LIMIT": 0.0}
        many = tile | for_many_rows(tile, 2048, columns, 90)
        stages = tile.pop("stages")
        types = dict.fromkeys(("x", "weight", "bias", "out"), f"*{kind}")
        types |= {"rows": "i32"}
        constants = tile | {"APART": False}
        name = f"linear {kind} {columns}{f', {activation}' if activation else ''}"
        yield Compilation(name, linear_kernel, signature_of(linear_kernel, types, constants), constants, stages=stages)
        if splits > 1:
            constants = tile | {"APART": True, "HAS_BIAS": False, "ACTIVATION": -1}
            signature = signature_of(linear_kernel, types | {"out": "*fp32"}, constants)
            yield Compilation(f"linear {kind} {columns} in ranges", linear_kernel, signature, constants, stages=stages)
            ending = {name: tile[name] for name in ("columns", "HAS_BIAS", "ACTIVATION", "LIMIT")}
            constants = ending | {"SPLITS": splits, "BLOCK": 1024}
            signature = signature_of(add_ranges_kernel, types | {"partial": "*fp32"}, constants)
            yield Compilation(f"add_ranges {kind} {columns}", add_ranges_kernel, signature, constants)
        if arch in MANY_ON and many["BLOCK_M"] != BLOCK_M:
            sizes = many.pop("warps"), many.pop("stages")
            constants = many | {"APART": False}
            signature = signature_of(linear_kernel, types, constants)
            name = f"linear {kind} {columns} of many rows{f', {activation}' if activation else ''}"
            yield Compilation(name, linear_kernel, signature, constants, *sizes)
    # DeepSeek-V3's queries, against latents instead of keys.
    tile = tile_of(512, 128, torch.bfloat16)[0] | {"columns": 512, "inputs": 128, "x_stride": 24576, "x_head": 192}
    tile |= {"out_stride": 73728, "out_head": 576}
    stages = tile.pop("stages")
    types = dict.fromkeys(("x", "weight", "out"), "*bf16") | {"rows": "i32"}
    signature = signature_of(linear_by_head_kernel, types, tile)
    yield Compilation("linear_by_head", linear_by_head_kernel, signature, tile, stages=stages)
