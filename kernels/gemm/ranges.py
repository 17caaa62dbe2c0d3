"""Ranges of K as programs of their own. Who reads the product adds them, with the bits of one program.

    program (tile, 0):  sums of range 0 ─▶ partial[0]
    program (tile, 1):  sums of range 1 ─▶ partial[1]
    a reader:           ((partial[0] + partial[1]) + ...) + bias, rounded

Readers are the small kernels behind a layer's linears (kernels/norm_rope_act, kernels/kv_store). For all others a
kernel of its own adds (`whole` in ending.py). Knows nothing of linears: these kernels import it.

One kernel, in which the last program to arrive adds, was slower on an H200: its barriers, its count and its reads, one
behind the other, take 3 us of a linear, and another kernel 1.4, because it is there when the first one ends
(kernels/dependent.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl


@dataclass(frozen=True, slots=True)
class Ranges:
    """A product [R, N] whose ranges are still to be added, and then rounded to `dtype`."""

    partial: torch.Tensor  # [splits, R, N] float32
    bias: torch.Tensor | None  # [N]
    dtype: torch.dtype


# What a linear gives to who can read both.
Product = torch.Tensor | Ranges


@triton.jit
def put_range(total, partial, rows, columns: tl.constexpr, m, n, split):
    """Sums of a range, of rows m and columns n, to partial [splits, rows, columns] float32."""
    inside = (m < rows)[:, None] & (n < columns)[None, :]
    at = split * (rows.to(tl.int64) * columns) + m.to(tl.int64)[:, None] * columns + n[None, :]
    tl.store(partial + at, total, mask=inside)


@triton.jit
def added(partial, at, size, mask, SPLITS: tl.constexpr):
    """partial[at], the sums of SPLITS ranges that are `size` apart, in ascending order."""
    # From 0, as one program begins: -0 becomes 0.
    total = tl.load(partial + at, mask=mask, other=0.0) + 0.0
    for split in tl.static_range(1, SPLITS):
        total += tl.load(partial + at + split * size, mask=mask, other=0.0)
    return total


@triton.jit
def read_product(
    product, bias, row, rows, columns, mask,
    STRIDE: tl.constexpr, SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr, kind: tl.constexpr,
):  # fmt: skip
    """Some columns of row `row` of a product with `rows` rows that are STRIDE apart, in float32. With SPLITS it is in
    ranges: they are added, and the bias, and their sum is rounded to `kind`."""
    at = row.to(tl.int64) * STRIDE + columns
    if SPLITS > 0:
        total = added(product, at, rows.to(tl.int64) * STRIDE, mask, SPLITS)
        if HAS_BIAS:
            total += tl.load(bias + columns, mask=mask, other=0.0).to(tl.float32)
        return total.to(kind).to(tl.float32)
    else:
        return tl.load(product + at, mask=mask, other=0.0).to(tl.float32)


def product_of(given: Product, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """What a kernel with `read_product` is given: product, bias and constants."""
    if isinstance(given, torch.Tensor):
        return given, given, {"SPLITS": 0, "HAS_BIAS": False}
    assert given.dtype == kind
    bias = given.partial if given.bias is None else given.bias
    return given.partial, bias, {"SPLITS": len(given.partial), "HAS_BIAS": given.bias is not None}


def partial_sums(
    rows: int, columns: int, splits: int, few_rows: int, device: torch.device
) -> torch.Tensor | None:  # [splits, R, N] float32
    """Memory for the sums of ranges. None if K isn't cut, or for more than `few_rows` rows, or none: then one program
    computes all ranges of its tile."""
    if splits == 1 or not 0 < rows <= few_rows:
        return None
    return torch.empty(splits, rows, columns, dtype=torch.float32, device=device)
