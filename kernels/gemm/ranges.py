"""Ranges of K as programs of their own, and a second kernel that adds them, with the bits of one program.

    program (tile, 0):  sums of range 0 ─▶ partial[0]
    program (tile, 1):  sums of range 1 ─▶ partial[1]
    add_ranges:         out = ((partial[0] + partial[1]) + ...) + bias

One kernel, in which the last program to arrive adds, was slower on an H200: its barriers, its count and its reads, one
behind the other, take 3 us of a linear, and the second kernel 1.4, because it is there when the first one ends
(kernels/dependent.py).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.dependent import start_next_early, wait_for_kernel_before
from kernels.gemm.ending import put
from kernels.launch import ceil_div, launch

_BLOCK = 1024


@triton.jit
def put_range(total, partial, rows, columns: tl.constexpr, m, n, split):
    """Sums of a range, of rows m and columns n, to partial [splits, rows, columns] float32."""
    inside = (m < rows)[:, None] & (n < columns)[None, :]
    at = split * (rows.to(tl.int64) * columns) + m.to(tl.int64)[:, None] * columns + n[None, :]
    tl.store(partial + at, total, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def add_ranges_kernel(
    partial, bias, out, rows, columns: tl.constexpr, SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of a block of columns: the ranges' sums in ascending order, as output (ending.py)."""
    start_next_early()
    wait_for_kernel_before()
    m = tl.program_id(0) + tl.arange(0, 1)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = partial + m.to(tl.int64)[:, None] * columns + n[None, :]
    total = tl.zeros((1, BLOCK), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(at + split * (rows.to(tl.int64) * columns), mask=(n < columns)[None, :], other=0.0)
    put(total, bias, out, rows, columns, m, n, HAS_BIAS, ACTIVATION, LIMIT)


def partial_sums(out: torch.Tensor, columns: int, splits: int, few_rows: int) -> torch.Tensor | None:
    """Memory for the sums of ranges. None if K isn't cut, or if there are more than `few_rows` rows: then one program
    computes all ranges of its tile."""
    if splits == 1 or len(out) > few_rows:
        return None
    return torch.empty(splits, len(out), columns, dtype=torch.float32, device=out.device)


def add_ranges(
    partial: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, activation: int = -1, limit: float = 0.0
) -> None:
    splits, rows, columns = partial.shape
    launch(
        add_ranges_kernel, (rows, ceil_div(columns, _BLOCK)), partial, partial if bias is None else bias, out, rows,
        columns=columns, SPLITS=splits, HAS_BIAS=bias is not None, ACTIVATION=activation, LIMIT=limit, BLOCK=_BLOCK,
    )  # fmt: skip
