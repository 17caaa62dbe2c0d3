"""How a tile of sums becomes output: the bias is added, the sum rounded, and a gate taken with its up where a linear
gives gates and ups. Rounding between is that of a linear and an activation behind it, so the bits are, too.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.norm_rope_act.fused import activated


@triton.jit
def put(
    total, bias, out, rows, columns: tl.constexpr, m, n, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr = -1,
    LIMIT: tl.constexpr = 0.0,
):  # fmt: skip
    """Sums of rows m and of this program's columns n. With an activation, a gate and its up stand side by side
    (`interleaved`), and out has half the columns."""
    if HAS_BIAS:
        total += tl.load(bias + n, mask=n < columns, other=0.0).to(tl.float32)[None, :]
    if ACTIVATION < 0:
        _write(total, out, rows, columns, m, n)
    else:
        PAIRS: tl.constexpr = total.shape[1] // 2
        rounded = total.to(out.dtype.element_ty).to(tl.float32)
        gate, up = tl.split(tl.reshape(rounded, (total.shape[0], PAIRS, 2)))
        pair = tl.program_id(1) * PAIRS + tl.arange(0, PAIRS)
        _write(activated(gate, up, ACTIVATION, LIMIT), out, rows, columns // 2, m, pair)


@triton.jit
def _write(value, out, rows, columns: tl.constexpr, m, n):
    inside = (m < rows)[:, None] & (n < columns)[None, :]
    tl.store(out + m.to(tl.int64)[:, None] * columns + n[None, :], value.to(out.dtype.element_ty), mask=inside)


def interleaved(gates_and_ups: torch.Tensor) -> torch.Tensor:
    """Rows of gates, then of as many ups, as gate 0, up 0, gate 1, up 1 ..."""
    return gates_and_ups.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1).contiguous()
