"""Ranges of K as programs of their own, and the last of them adds: in one kernel, with the bits of one program.

    program (tile, 0):  sums of range 0 ─▶ partial[0] ─▶ arrived[tile] += 1: not the last, ends
    program (tile, 2):  sums of range 2 ─▶ partial[2] ─▶ arrived[tile] += 1: not the last, ends
    program (tile, 1):  sums of range 1 ─▶ partial[1] ─▶ arrived[tile] += 1: the last
                        out = ((partial[0] + partial[1]) + partial[2]) + bias;  arrived[tile] = 0

Whoever is the last reads all ranges, its own too, and adds them in ascending order: the order of arrival decides who
adds, not what is added to what. Nobody waits for anybody.

The counts are 0 between launches. Kernels of one stream use the same counts and the same memory in turn: one that is
started before the one in front of it has ended waits before it writes (kernels/dependent.py).
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.gemm.ending import put
from kernels.launch import power_of_two

_LEAST_COUNTS = 1024


@triton.jit
def put_as_the_last(
    total, partial, arrived, bias, out, rows, columns: tl.constexpr, m, n, split,
    SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_N: tl.constexpr, ACTIVATION: tl.constexpr = -1,
    LIMIT: tl.constexpr = 0.0,
):  # fmt: skip
    """Leave a range's sums, of all rows that there are; the last of a tile's programs puts the sums of all ranges."""
    of_a_range = rows.to(tl.int64) * columns
    inside = (m < rows)[:, None] & (n < columns)[None, :]
    tl.store(partial + split * of_a_range + m.to(tl.int64)[:, None] * columns + n[None, :], total, mask=inside)
    # One thread counts for all of its program, whose sums must have been written.
    tl.debug_barrier()
    tile = arrived + tl.program_id(1)
    if tl.atomic_add(tile, 1, sem="acq_rel", scope="gpu") == SPLITS - 1:
        # A few rows at once, so that the reads of all ranges are under way together.
        for first in range(0, rows, 16):
            some = first + tl.arange(0, 16)
            there = (some < rows)[:, None] & (n < columns)[None, :]
            at = partial + some.to(tl.int64)[:, None] * columns + n[None, :]
            added = tl.zeros((16, BLOCK_N), dtype=tl.float32)
            for other in tl.static_range(SPLITS):
                # From the L2: others wrote them.
                added += tl.load(at + other * of_a_range, mask=there, other=0.0, cache_modifier=".cg")
            put(added, bias, out, rows, columns, some, n, HAS_BIAS, ACTIVATION, LIMIT)
        tl.store(tile, 0)


def in_ranges(
    out: torch.Tensor, columns: int, splits: int, few_rows: int, tiles: int
) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Programs of a tile of out's rows and so many `columns` of sums, with `tiles` beside each other; the memory for
    their partial sums, and their counts."""
    if splits == 1 or len(out) > few_rows:
        return 1, out, out
    partial = torch.empty(splits, len(out), columns, dtype=torch.float32, device=out.device)
    return splits, partial, _counts(out.device, power_of_two(tiles, _LEAST_COUNTS))


def _counts(device: torch.device, tiles: int) -> torch.Tensor:
    """Those of the stream. A graph has the default stream's, on which it is replayed, whatever stream captures it."""
    default = _zeros(device, 0, tiles)
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return default
    return _zeros(device, torch.cuda.current_stream(device).cuda_stream, tiles)


@cache
def _zeros(device: torch.device, stream: int, tiles: int) -> torch.Tensor:
    """Never freed: graphs keep the address."""
    made = torch.zeros(tiles, dtype=torch.int32, device=device)
    if device.type == "cuda":
        # For all streams. Raises in a capture, before which everything has run once.
        torch.cuda.synchronize(device)
    return made
