"""How sums become output: the bias is added, the sum rounded, and a gate taken with its up where a linear gives gates
and ups. Rounding between is that of a linear and an activation behind it, so the bits are, too.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.dependent import start_next_early, wait_for_kernel_before
from kernels.gemm.ranges import Product, added
from kernels.launch import ceil_div, launch
from kernels.norm_rope_act.fused import ACTIVATIONS, activated

# Columns that a program of `add_ranges_kernel` adds.
_BLOCK = 1024


@triton.jit
def put(
    total, bias, out, rows, columns: tl.constexpr, m, first, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr = -1,
    LIMIT: tl.constexpr = 0.0,
):  # fmt: skip
    """Sums of rows m and of the columns from `first` on. With an activation, a gate and its up stand side by side
    (`interleaved`), and out has half the columns."""
    n = first + tl.arange(0, total.shape[1])
    if HAS_BIAS:
        total += tl.load(bias + n, mask=n < columns, other=0.0).to(tl.float32)[None, :]
    if ACTIVATION < 0:
        _write(total, out, rows, columns, m, n)
    else:
        PAIRS: tl.constexpr = total.shape[1] // 2
        rounded = total.to(out.dtype.element_ty).to(tl.float32)
        gate, up = tl.split(tl.reshape(rounded, (total.shape[0], PAIRS, 2)))
        pair = first // 2 + tl.arange(0, PAIRS)
        _write(activated(gate, up, ACTIVATION, LIMIT), out, rows, columns // 2, m, pair)


@triton.jit
def _write(value, out, rows, columns: tl.constexpr, m, n):
    inside = (m < rows)[:, None] & (n < columns)[None, :]
    tl.store(out + m.to(tl.int64)[:, None] * columns + n[None, :], value.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def add_ranges_kernel(
    partial, bias, out, rows, columns: tl.constexpr, SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of columns of a row."""
    start_next_early()
    wait_for_kernel_before()
    m = tl.program_id(0) + tl.arange(0, 1)
    first = tl.program_id(1) * BLOCK
    n = first + tl.arange(0, BLOCK)
    at = m.to(tl.int64)[:, None] * columns + n[None, :]
    total = added(partial, at, rows.to(tl.int64) * columns, (n < columns)[None, :], SPLITS)
    put(total, bias, out, rows, columns, m, first, HAS_BIAS, ACTIVATION, LIMIT)


def whole(
    product: Product, out: torch.Tensor | None = None, activation: str = "", limit: float = 0.0
) -> torch.Tensor:  # [R, N], of gates and ups [R, N / 2]
    """The product with its ranges added, in `out` if it is given. One that is whole already is given back."""
    if isinstance(product, torch.Tensor):
        return product
    splits, rows, columns = product.partial.shape
    if out is None:
        width = columns // 2 if activation else columns
        out = torch.empty(rows, width, dtype=product.dtype, device=product.partial.device)
    launch(
        add_ranges_kernel, (rows, ceil_div(columns, _BLOCK)), product.partial,
        product.partial if product.bias is None else product.bias, out, rows, columns=columns, SPLITS=splits,
        HAS_BIAS=product.bias is not None, ACTIVATION=ACTIVATIONS.index(activation) if activation else -1,
        LIMIT=float(limit), BLOCK=_BLOCK,
    )  # fmt: skip
    return out


def interleaved(gates_and_ups: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """Rows of gates, then of as many ups, as gate 0, up 0, gate 1, up 1 ... `dim`: where the rows are counted."""
    return gates_and_ups.unflatten(dim, (2, -1)).transpose(dim, dim + 1).flatten(dim, dim + 1).contiguous()
