"""Weights in the order in which kernels/linear/tiles.py reads them.

    W [N, K]  ->  [N / 32 blocks, K / p steps, 32 outputs, p inputs]     p inputs are 32 bits: 1, 2 or 4

One block is one sequential stream. What is missing to whole blocks and words is zeros. Of a gated linear (gate
rows above up rows) a block holds 16 gates and the 16 ups they are multiplied with.

mxfp4: codes of 4 bits, two a byte, that of the even input low, and of 32 inputs a scale, 2 to the power of a byte less
127. A step has 32 inputs: the scales of 32 outputs, then [16 pairs of inputs, 32 outputs] bytes of codes.

int8: w ≈ q · scale with a scale an output, scale = max|w| / 127. Inputs come as bytes x + 128, so every sum is 128 ·
Σq too big, and begins at minus that.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from kernels import cpu_vectors as v
from kernels.cpu_program import compiled
from kernels.cpu_vectors import LANES
from kernels.linear.tiles import BLOCK, CODED_STEP_BYTES, CODED_WORDS, STEP_BYTES

# Inputs in one step: of a 32-bit word, or of a block of codes.
PER_STEP = {"float32": 1, "bfloat16": 2, "int8": 4, "mxfp4": 2 * CODED_WORDS}
# Scales of mxfp4 whose numbers and their halves are ordinary ones in bfloat16.
ORDINARY = range(2, 253)
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
_ALIGNMENT = 4096
_PUT_AT_ONCE = 16  # steps
# Bytes that are worth a thread of their own.
_A_THREAD = 1 << 20
_HUGE_PAGE = 2 << 20


class PackedMemory:
    """Hands out pieces of large areas that the system may back with huge pages: fewer misses in address translation."""

    def __init__(self, area: int = 64 << 20) -> None:
        self._area, self._bytes, self._used = area, torch.empty(0, dtype=torch.uint8), 0

    def take(self, size: int) -> torch.Tensor:
        """`size` bytes, all of them 0, that begin at a page."""
        if self._used + size > len(self._bytes):
            self._bytes, self._used = _map(max(size, self._area)), 0
        piece = self._bytes[self._used : self._used + size]
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return piece


def _map(size: int) -> torch.Tensor:
    # Not shared with another process: only such memory is backed with huge pages.
    area = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        area.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(area, dtype=torch.uint8)
    start = -whole.data_ptr() % _HUGE_PAGE
    return whole[start : start + size]


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """One linear, or the same linear of many experts, one after the other."""

    kind: str
    experts: int
    outputs: int  # that are written: a gated linear has two rows for each
    inputs: int
    gated: bool
    blocks: int  # of an expert
    steps: int  # of a row, the last one perhaps not whole
    weight: torch.Tensor  # [experts · blocks, steps, 32, p], or bytes [experts · blocks, steps, 544]
    starts: torch.Tensor  # [experts · blocks · 32] of 4 bytes: what the sums begin at
    scales: torch.Tensor | None  # [experts · blocks · 32] float32
    bias: torch.Tensor | None  # [experts · blocks · 32] float32

    @property
    def block_bytes(self) -> int:
        return self.steps * (CODED_STEP_BYTES if self.kind == "mxfp4" else STEP_BYTES)


# Rows, or parts of them one below the other.
Rows = torch.Tensor | tuple[torch.Tensor, ...]


def pack(
    weight: torch.Tensor | Sequence[Rows],
    kind: str,
    bias: torch.Tensor | Sequence[torch.Tensor] | None = None,
    scales: torch.Tensor | Sequence[torch.Tensor] | None = None,
    gated: bool = False,
    memory: PackedMemory | None = None,
) -> PackedWeight:
    """`weight` [N, K] in a float dtype, or in int8 with `scales` [N] for kind int8. Sequences: experts'."""
    weights = [_parts(each) for each in ([weight] if isinstance(weight, torch.Tensor) else weight)]
    given = [scales] * len(weights) if scales is None or isinstance(scales, torch.Tensor) else scales
    rows, inputs = sum(map(len, weights[0])), weights[0][0].shape[1]
    outputs = rows // 2 if gated else rows
    blocks = -(-outputs // (BLOCK // 2 if gated else BLOCK))
    per = PER_STEP[kind]
    steps = -(-inputs // per)
    room = (memory or PackedMemory()).take(len(weights) * blocks * steps * BLOCK * 4)
    packed = room.view(_DTYPES[kind]).view(len(weights), blocks, steps, BLOCK, per)
    starts = torch.zeros(len(weights), blocks * BLOCK, dtype=torch.int32)
    columns = []
    for index, (parts, scale) in enumerate(zip(weights, given, strict=True)):
        if kind == "int8" and parts[0].dtype != torch.int8:
            parts, found = zip(*map(quantize, parts), strict=True)
            scale = torch.cat(found)
        first = 0
        for part in parts:
            _put(part.to(_DTYPES[kind]), first, rows, gated, packed[index])
            first += len(part)
        if kind == "int8":
            sums = torch.cat([part.sum(-1, dtype=torch.int32) for part in parts])
            starts[index] = -128 * _in_blocks(sums, gated, blocks).flatten()
            columns.append(_in_blocks(scale.float(), gated, blocks).flatten())
    return PackedWeight(
        kind=kind, experts=len(weights), outputs=outputs, inputs=inputs, gated=gated, blocks=blocks, steps=steps,
        weight=packed.flatten(0, 1), starts=starts.flatten(), scales=torch.cat(columns) if columns else None,
        bias=None if bias is None else _bias_in_blocks(bias, gated, blocks),
    )  # fmt: skip


def _parts(rows: Rows) -> tuple[torch.Tensor, ...]:
    return rows if isinstance(rows, tuple) else (rows,)


def _put(part: torch.Tensor, first: int, rows: int, gated: bool, packed: torch.Tensor) -> None:
    """Copy a part of a weight into `packed` [blocks, steps, 32, p], which holds zeros. The weight has `rows` rows, and
    the part begins at row `first`."""
    _, steps, _, per = packed.shape
    if missing := steps * per - part.shape[1]:
        part = torch.nn.functional.pad(part, (0, missing))
    part = part.contiguous()
    width, half = (BLOCK // 2, rows // 2) if gated else (BLOCK, rows)
    for place in range(rows // half):
        # Of the part, its rows in this half.
        begin, end = (min(max(half * each - first, 0), len(part)) for each in (place, place + 1))
        above, into = first + begin - half * place, packed.data_ptr() + 4 * width * place
        words = part[begin:end]
        _side_by_side(words, partial(put_words, words.data_ptr(), into, above, steps, width))


@compiled
def put_words(words, into, above, steps, width, begin, end):
    """Copy rows `begin` to `end` of a part; each has `steps` words of 32 bits. `above`: rows of the weight before the
    part. A block takes `width` rows, and `into` is the address of block 0. A few steps of a block are written at a
    time, so that it stays in the cache."""
    row = begin
    while row < end:
        block, lane = (above + row) // width, (above + row) % width
        count = min(width - lane, end - row)
        for step in range(0, steps, _PUT_AT_ONCE):
            out = into + 4 * (BLOCK * (block * steps + step) + lane)
            for each in range(count):
                x = words + 4 * ((row + each) * steps + step)
                # A count that the compiler knows takes half of the time.
                if step + _PUT_AT_ONCE <= steps:
                    for at in range(_PUT_AT_ONCE):
                        v.store_i32(out, BLOCK * at + each, v.load_i32(x, at))
                else:
                    for at in range(steps - step):
                        v.store_i32(out, BLOCK * at + each, v.load_i32(x, at))
        row += count


def pack_mxfp4(
    codes: Sequence[torch.Tensor],
    scales: Sequence[torch.Tensor],
    bias: Sequence[torch.Tensor] | None = None,
    gated: bool = False,
    memory: PackedMemory | None = None,
) -> PackedWeight:
    """Of experts: codes [N, K / 2] and scales [N, K / 32], bytes; scales are ORDINARY."""
    rows, steps = scales[0].shape
    outputs = rows // 2 if gated else rows
    blocks = -(-outputs // (BLOCK // 2 if gated else BLOCK))
    room = (memory or PackedMemory()).take(len(codes) * blocks * steps * CODED_STEP_BYTES)
    packed = room.view(len(codes), blocks, steps, CODED_WORDS + 1, BLOCK)
    for into, code, scale in zip(packed, codes, scales, strict=True):
        # Rows that aren't there have codes of zero, whose scale must be ordinary, too.
        into[:, :, 0].copy_(_in_blocks(scale, gated, blocks).clamp(min=ORDINARY.start).transpose(1, 2))
        by_steps = _in_blocks(code, gated, blocks).view(blocks, BLOCK, steps, CODED_WORDS)
        into[:, :, 1:].copy_(by_steps.permute(0, 2, 3, 1))
    return PackedWeight(
        kind="mxfp4", experts=len(codes), outputs=outputs, inputs=steps * 2 * CODED_WORDS, gated=gated, blocks=blocks,
        steps=steps, weight=packed.flatten(0, 1).flatten(2),
        starts=torch.zeros(len(codes) * blocks * BLOCK, dtype=torch.int32), scales=None,
        bias=None if bias is None else _bias_in_blocks(bias, gated, blocks),
    )  # fmt: skip


def _bias_in_blocks(bias: torch.Tensor | Sequence[torch.Tensor], gated: bool, blocks: int) -> torch.Tensor:
    each = [bias] if isinstance(bias, torch.Tensor) else bias
    return torch.cat([_in_blocks(one.float(), gated, blocks).flatten() for one in each])


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 [N, K] and float32 scales [N]: w ≈ q · scale. A row with a number that isn't finite has the scale NaN."""
    weight = weight.contiguous() if weight.dtype in (torch.bfloat16, torch.float32) else weight.float().contiguous()
    rows, width = weight.shape
    made, scales = torch.empty(rows, width, dtype=torch.int8), torch.empty(rows)
    is_bfloat16 = weight.dtype == torch.bfloat16
    places = weight.data_ptr(), made.data_ptr(), scales.data_ptr()
    _side_by_side(weight, lambda begin, end: quantize_weight_rows(*places, is_bfloat16, width, begin, end))
    return made, scales


@compiled
def quantize_weight_rows(weight, made, scales, is_bfloat16, width, begin, end):
    for row in range(begin, end):
        x, q = weight + row * width * (2 if is_bfloat16 else 4), made + row * width
        peak, odd = v.zeros(), v.zeros()
        for at in range(0, width, LANES):
            value = v.load_part(x, at, width - at, is_bfloat16)
            peak = v.maximum(v.absolute(value), peak)
            # 0, or NaN.
            odd = odd + value * v.zeros()
        scale = v.largest(peak) / np.float32(127.0) + v.total(odd)
        inverse = np.float32(1.0) / scale if scale > np.float32(0.0) else np.float32(0.0)
        for at in range(0, width, LANES):
            value = v.to_ints(v.load_part(x, at, width - at, is_bfloat16) * v.spread(inverse))
            if width - at >= LANES:
                v.store_bytes(q, at, value)
            else:
                v.store_bytes_part(q, at, value, width - at)
        v.store_f32(scales, row, scale)


def _side_by_side(rows: torch.Tensor, work: Callable[[int, int], None]) -> None:
    """work(begin, end) of parts of the rows, by at most as many threads as torch has."""
    threads = min(len(rows), torch.get_num_threads(), rows.nbytes // _A_THREAD)
    if threads <= 1:
        return work(0, len(rows))
    cuts = [len(rows) * each // threads for each in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, cuts, cuts[1:]))


def _in_blocks(rows: torch.Tensor, gated: bool, blocks: int) -> torch.Tensor:
    """[N, …] -> [blocks, 32, …], zeros where there is no row."""
    if gated:
        return torch.cat([_split(half, blocks, BLOCK // 2) for half in rows.chunk(2)], 1)
    return _split(rows, blocks, BLOCK)


def _split(rows: torch.Tensor, blocks: int, width: int) -> torch.Tensor:
    missing = blocks * width - len(rows)
    if missing:
        rows = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
    return rows.view(blocks, width, *rows.shape[1:])


def blocks_of_a_chunk(blocks: int, block_bytes: int, threads: int) -> int:
    """Blocks of a chunk: the threads are done at the same time if nobody disturbs them, and no chunk takes long.

    A thread streams about 17 kB/µs; claiming a chunk costs it about 0.15 µs.
    """

    def until_done(per_chunk: int) -> float:
        chunks = -(-blocks // per_chunk)
        rounds = -(-chunks // threads)
        return rounds * (per_chunk * block_bytes / 17e3 + 0.15)

    most = max(1, _LONGEST_CHUNK // block_bytes)
    return min(range(1, min(most, blocks) + 1), key=until_done)


# Bytes: about 8 µs.
_LONGEST_CHUNK = 128 << 10
