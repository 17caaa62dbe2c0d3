"""Programmatic dependent launch, from sm_90 on: a kernel is started while the one before it still runs, and waits until
that one has ended and all that it wrote can be read. A step of a small model is some three hundred kernels, and
this hides a part of what lies between two of them: 7 % of a step of SmolLM2 on an H200, of Llama 8B nothing.

    start_next_early()         the next kernel may be started when all programs of this one have come here, or ended
    prefetch_weight(...)       a linear's weight, which no kernel writes, on its way to the L2 cache
    wait_for_kernel_before()   until the kernel before this one has ended

Why it is right. Each kernel that is started so waits, on every path and before it reads or writes anything else. So it
ends after the one before has ended, and that one after its own: behind the wait, all kernels further back have ended
too, also those whose memory this one writes anew. Kernels and copies that aren't ours wait for everything in front of
them, and what is started behind one of them starts when it has ended.

Why it can't hang. `start_next_early` counts when every program of the kernel has come there, so all of them have their
place on the device, and the next kernel's programs get only what is left. Of the kernels that are started, the first
waits for nothing, has all its programs in place or gets the place that others free, and ends; then the next is the
first. A chain of any length goes on so.

Who starts the next one early. Small kernels, whose programs hold little and end together, and linears of one tile of
rows. Attention, the experts' linears and linears of many rows don't: their programs end at different times, and those
of the next kernel would gather where the first have ended, instead of spreading over the device.

`launch` starts the kernels so that have the line with the wait.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.runtime.jit import constexpr_function

# Bytes of a weight that each program of a linear asks for before it waits: about what its first steps of K read.
AHEAD = tl.constexpr(32768)
# What one prefetch brings at least.
LINE = tl.constexpr(64)


@triton.jit
def start_next_early():
    if tl.target_info.cuda_capability_geq(9, 0):
        gdc_launch_dependents()


@triton.jit
def wait_for_kernel_before():
    if tl.target_info.cuda_capability_geq(9, 0):
        gdc_wait()


@triton.jit
def prefetch_weight(weight, columns: tl.constexpr, width: tl.constexpr, first, length: tl.constexpr,
                    BLOCK_N: tl.constexpr):  # fmt: skip
    """For a linear's program (tile of rows, tile of columns, ...): the beginning of what it will read of `weight`
    [columns, width], whose numbers first .. first + length - 1 it needs of each of its columns. The first tile of rows
    asks for all."""
    if tl.target_info.cuda_capability_geq(9, 0):
        SIZE: tl.constexpr = weight.dtype.element_ty.primitive_bitwidth // 8
        LINES: tl.constexpr = lines_of_a_column(AHEAD // BLOCK_N, length * SIZE, LINE)
        if LINES > 0:
            n = tl.minimum(tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N), columns - 1)
            # Never beyond the end of a column's numbers, which may be that of the memory.
            at = tl.minimum(first * SIZE + tl.arange(0, LINES) * LINE, width * SIZE - 1)
            address = weight.to(tl.int64) + n.to(tl.int64)[:, None] * (width * SIZE) + at[None, :]
            if tl.program_id(0) == 0:
                # Each thread one address; the bulk instruction would take them one after another.
                tl.inline_asm_elementwise(
                    "prefetch.global.L2 [$1]; // $0", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
                )


@constexpr_function
def lines_of_a_column(ahead, length, line):
    """A power of two; 0: none."""
    lines = min(ahead, length) // line
    return 1 << (lines.bit_length() - 1) if lines else 0
