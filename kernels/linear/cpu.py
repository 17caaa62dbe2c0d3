"""y = x · Wᵀ (+ b) as an op of the CPU program (kernels/cpu_program.py), in bfloat16, float32 or int8, and in bfloat16
with weights in mxfp4, which gives the bits of the same weights in bfloat16.

A chunk is a few blocks of 32 outputs for all rows. Rows go through in tiles of up to 8: their sums stay in
registers while the block streams by (kernels/linear/tiles.py), then an ending turns them into outputs: stored,
added into the residual, or f(gate) · up. Every sum takes its steps in one order, whatever the number of rows
and their place in a tile, and endings look at one row and 16 outputs at a time: a row's bits depend on the row.

Rows of x are `x_stride` bytes apart; of a row nothing is read but its K values, of an output nothing is written
but its N values. Inputs of kind int8 are bytes x/scale + 128 with a float32 scale a row: `quantize_rows` makes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import torch

from kernels import amx
from kernels import cpu_vectors as v
from kernels.cpu_instructions import ALL, Instructions
from kernels.cpu_program import ROWS, Native, Op, op, op_chunks
from kernels.linear import amx_tiles, tiles
from kernels.linear.packing import PER_STEP, PackedWeight, blocks_of_a_chunk
from kernels.linear.tiles import BLOCK, CODED_WORDS, LANES, STEP_BYTES, WIDE_ROWS

# What becomes of the sums: stored, added, or with a gated weight f(gate) · up.
STORE, ADD, GATE = "store", "add", "gate"
_STORE_FLOAT32, _STORE_BFLOAT16, _ADD_FLOAT32, _GATE_FLOAT32, _GATE_BFLOAT16 = range(5)
_ENDINGS = {
    (STORE, torch.float32): _STORE_FLOAT32,
    (STORE, torch.bfloat16): _STORE_BFLOAT16,
    (ADD, torch.float32): _ADD_FLOAT32,
    (GATE, torch.float32): _GATE_FLOAT32,
    (GATE, torch.bfloat16): _GATE_BFLOAT16,
}
_SILU, _GELU, _CLAMPED = range(3)
_ACTIVATIONS = {"silu": _SILU, "gelu_tanh": _GELU, "clamped_swiglu": _CLAMPED}
_CLAMPED_SLOPE = np.float32(1.702)
# Of GELU: 2·√(2/π), and what the cube counts.
_GELU_SLOPE, _GELU_CUBE = np.float32(2 * math.sqrt(2 / math.pi)), np.float32(0.044715)

# Words of the op. NEXT: the weights that the program's next linear begins with.
(
    X, X_STRIDE, X_SCALES, WEIGHT, STARTS, SCALES, BIAS, STEPS, TAIL_BYTES, BLOCKS, PER_CHUNK, CHUNKS, OUTPUTS, OUT,
    OUT_STRIDE, ENDING, ROWS_AT, ROWS_AT_ONCE, THREADS, NEXT, EXPERTS, PLACES, CHOSEN, TOP_K, X_GROUP, OUT_GROUP,
    ACTIVATION, LIMIT, BLOCK_BYTES, _WORDS,
) = range(30)  # fmt: skip

# So many tiles that pass a block at once are faster than fewer that pass it twice.
_FEW_TILES = 3
# Rows whose inputs stay in the second cache beside the weights of a chunk.
_INPUT_BYTES_AT_ONCE = 384 << 10

# Rows whose sums are kept while steps of codes are decoded for all of them, and steps decoded at once.
_ROWS_OF_CODES, _DECODED_STEPS = 64, 8

_sums = v.scratch(WIDE_ROWS * BLOCK * 4)
_sums_of_tiles, _amx_state = v.scratch(amx_tiles.ROWS * BLOCK * 4), v.scratch(amx.STATE)
_sums_of_codes = v.scratch(_ROWS_OF_CODES * BLOCK * 4)
_decoded = v.scratch(_DECODED_STEPS * CODED_WORDS * STEP_BYTES)
_tails = v.scratch(WIDE_ROWS * 8)


def _inner(function: Any) -> Any:
    """A part of an op. Said to be exact: it would inherit leave to reorder sums from a caller that has it."""
    return numba.njit(error_model="numpy", fastmath=False)(function)


# Sums of a tile --------------------------------------------------------------------------------------------


@_inner
def _tail_words(x, stride, count, size, words, whole):
    """The last, unfinished step of every row: its bytes and zeros."""
    for row in range(count):
        for byte in range(whole):
            value = v.load_u8(x, row * stride + byte) if byte < size else 0
            v.store_u8(words, row * whole + byte, value)


@_inner
def _begin(args, block, rows, sums):
    """sums [rows, 32] of a block are what they begin at."""
    starts = v.word(args, STARTS) + block * BLOCK * 4
    low, high = v.load_ints(starts, 0), v.load_ints(starts, LANES)
    for row in range(rows):
        v.store_ints(sums, row * BLOCK, low)
        v.store_ints(sums, row * BLOCK + LANES, high)


@_inner
def _sum_up(args, variant, x, count, block, sums, ahead, share):
    """sums [count, 32] of a block, from what they begin at."""
    stride, steps, tail = v.word(args, X_STRIDE), v.word(args, STEPS), v.word(args, TAIL_BYTES)
    of_row = tiles.step_bytes(variant)
    _begin(args, block, count, sums)
    weight = v.word(args, WEIGHT) + block * v.word(args, BLOCK_BYTES)
    whole = steps
    if tail > 0:
        whole -= 1
    for part in range(2):
        if part == 0:
            words, between, count_of_steps = x, stride, whole
        else:
            if tail == 0:
                break
            words, between, count_of_steps = _tails(), of_row, 1
            _tail_words(x + whole * of_row, stride, count, tail, words, of_row)
            weight += whole * tiles.weight_bytes(variant)
        tiles.tile(variant, count, words, between, weight, count_of_steps, sums, ahead, share)


@_inner
def _sum_up_codes(args, variant, x, rows, count_of_tiles, block, sums, ahead):
    """The same for rows of several tiles: codes are made words once for all of them."""
    stride, steps, of_row = v.word(args, X_STRIDE), v.word(args, STEPS), tiles.step_bytes(variant)
    words = _decoded()
    _begin(args, block, rows, sums)
    weight, of_step = v.word(args, WEIGHT) + block * v.word(args, BLOCK_BYTES), tiles.weight_bytes(variant)
    for first in range(0, steps, _DECODED_STEPS):
        count_of_steps = min(_DECODED_STEPS, steps - first)
        tiles.decode(variant, weight + first * of_step, count_of_steps, words)
        row = 0
        for left in range(count_of_tiles, 0, -1):
            count = (rows - row + left - 1) // left
            at, wanted = x + row * stride + first * of_row, ahead + first * of_step
            tiles.tile(
                tiles.decoded(variant), count, at, stride, words, count_of_steps * CODED_WORDS,
                sums + row * BLOCK * 4, wanted, of_step // CODED_WORDS,
            )  # fmt: skip
            row += count


# Endings ---------------------------------------------------------------------------------------------------


@_inner
def _value(args, variant, sums, row, output, place):
    """16 outputs from `output` on, of all experts', whose sums are at `place`."""
    value = v.load_floats(sums, place)
    if tiles.sums_are_ints(variant):
        scale = v.spread(v.load_f32(v.word(args, X_SCALES), row))
        value = v.to_floats(v.load_ints(sums, place)) * scale * v.load_floats(v.word(args, SCALES), output)
    bias = v.word(args, BIAS)
    if bias != 0:
        value = value + v.load_floats(bias, output)
    return value


@_inner
def _gated(args, gate, up):
    """silu(gate) · up with silu(gate) = gate · sigmoid(gate); GELU has sigmoid(2·√(2/π) · (gate + 0.044715 · gate³)).
    Clamped: (up + 1) · gate · sigmoid(1.702 · gate)."""
    activation, by = v.word(args, ACTIVATION), gate
    if activation == _GELU:
        by = v.spread(_GELU_SLOPE) * v.multiply_add(v.spread(_GELU_CUBE) * gate * gate, gate, gate)
    elif activation == _CLAMPED:
        # What is no number comes second, and stays.
        least = v.zeros() - v.spread(v.float_in(v.word(args, LIMIT)))
        gate = v.zeros() - v.maximum(least, v.zeros() - gate)
        up = v.zeros() - v.maximum(least, v.zeros() - v.maximum(least, up)) + v.spread(1.0)
        by = v.spread(_CLAMPED_SLOPE) * gate
    return gate / (v.spread(1.0) + v.exps(v.zeros() - by)) * up


@_inner
def _end(args, variant, sums, row, count, block):
    """Outputs of `count` rows from `row` on. A gated block holds 16 gates, then the 16 ups they belong to."""
    ending, outputs = v.word(args, ENDING), v.word(args, OUTPUTS)
    out, stride = v.word(args, OUT), v.word(args, OUT_STRIDE)
    of_expert = block % v.word(args, BLOCKS)
    out += block // v.word(args, BLOCKS) * v.word(args, OUT_GROUP)
    for r in range(count):
        to = out + (row + r) * stride
        if ending >= _GATE_FLOAT32:
            gate = _value(args, variant, sums, row + r, block * BLOCK, r * BLOCK)
            up = _value(args, variant, sums, row + r, block * BLOCK + LANES, r * BLOCK + LANES)
            at = of_expert * LANES
            v.store_part(to, at, _gated(args, gate, up), outputs - at, ending == _GATE_BFLOAT16)
        else:
            for half in range(2):
                at = of_expert * BLOCK + half * LANES
                left = outputs - at
                if left > 0:
                    value = _value(args, variant, sums, row + r, block * BLOCK + half * LANES, r * BLOCK + half * LANES)
                    if ending == _ADD_FLOAT32:
                        value = v.load_part(to, at, left, False) + value
                    v.store_part(to, at, value, left, ending == _STORE_BFLOAT16)


# A chunk ---------------------------------------------------------------------------------------------------


@_inner
def _chunks(args, step):
    rows, experts = v.word(step, v.word(args, ROWS_AT)), v.word(args, EXPERTS)
    if v.word(args, CHOSEN) != 0:
        experts = min(experts, rows * v.word(args, TOP_K))
    return v.word(args, CHUNKS) * experts if rows > 0 else 0


@_inner
def _expert_of(args, chunk):
    """Whose outputs a chunk makes: experts with rows come first; -1 where no more have any."""
    index = chunk // v.word(args, CHUNKS)
    return index if v.word(args, CHOSEN) == 0 else np.int64(v.load_i32(v.word(args, CHOSEN), index))


@_inner
def _ahead(args, step, chunk, block, last, is_one_tile):
    """The block that this thread will probably want next: of its chunk, of the chunk that it will claim, or of the
    program's next linear. Of experts with a few rows each nothing: memory is busy, and has shorter ways to go in
    order (21 GB/s with the next expert's block asked for, 27 without; with 16 rows each it is 10 % faster with)."""
    size = v.word(args, BLOCK_BYTES)
    weight, blocks = v.word(args, WEIGHT), v.word(args, BLOCKS)
    if block + 1 < last:
        return weight + (block + 1) * size
    if is_one_tile and v.word(args, EXPERTS) > 1:
        return weight + block * size
    claimed, chunks = chunk + v.word(args, THREADS), _chunks(args, step)
    if claimed < chunks:
        expert = _expert_of(args, claimed)
        if expert >= 0:
            return weight + (expert * blocks + claimed % v.word(args, CHUNKS) * v.word(args, PER_CHUNK)) * size
    elif v.word(args, NEXT) != 0:
        return v.word(args, NEXT) + (claimed - chunks) * v.word(args, PER_CHUNK) * size
    return weight + block * size


@_inner
def _work(args, step, chunk, expert):
    """The rows of a chunk, from one up to another, and its blocks, likewise."""
    first_row, end_row = 0, v.word(step, v.word(args, ROWS_AT))
    if v.word(args, PLACES) != 0:
        first_row = np.int64(v.load_i32(v.word(args, PLACES), expert))
        end_row = np.int64(v.load_i32(v.word(args, PLACES), expert + 1))
    blocks, size = v.word(args, BLOCKS), v.word(args, PER_CHUNK)
    first = chunk % v.word(args, CHUNKS) * size
    return first_row, end_row, expert * blocks + first, expert * blocks + min(first + size, blocks)


@_inner
def _run(args, step, chunk, variant):
    most, whole = tiles.most_rows(variant), tiles.whole_rows(variant)
    expert = _expert_of(args, chunk)
    if expert < 0:
        return
    first_row, end_row, first, last = _work(args, step, chunk, expert)
    x, stride, at_once = v.word(args, X), v.word(args, X_STRIDE), v.word(args, ROWS_AT_ONCE)
    x += expert * v.word(args, X_GROUP)
    block_bytes, of_step = v.word(args, BLOCK_BYTES), tiles.weight_bytes(variant)
    sums, sums_of_codes = _sums(), _sums_of_codes()
    while first_row < end_row:
        rows = min(at_once, end_row - first_row)
        # With few rows the step waits for weights from memory, and takes longer if it passes a block twice.
        fitting = whole if rows <= _FEW_TILES * whole else most
        count_of_tiles = (rows + fitting - 1) // fitting
        for block in range(first, last):
            # Each tile asks for its share of the next block.
            ahead, share = _ahead(args, step, chunk, block, last, count_of_tiles == 1), of_step // count_of_tiles
            row = 0
            if tiles.is_coded(variant) and count_of_tiles > 1:
                _sum_up_codes(args, variant, x + first_row * stride, rows, count_of_tiles, block, sums_of_codes, ahead)
                _end(args, variant, sums_of_codes, first_row, rows, block)
                continue
            for left in range(count_of_tiles, 0, -1):
                count = (rows - row + left - 1) // left
                _sum_up(args, variant, x + (first_row + row) * stride, count, block, sums, ahead, share)
                _end(args, variant, sums, first_row + row, count, block)
                ahead += block_bytes // count_of_tiles
                row += count
        first_row += rows


# With AMX ---------------------------------------------------------------------------------------------------


@_inner
def _products(variant, state, two, x, stride, w, count, starts, starts_stride, sums, ahead, lines):
    if tiles.sums_are_ints(variant):
        amx_tiles.products_int8(state, two, x, stride, w, count, starts, starts_stride, sums, ahead, lines)
    else:
        amx_tiles.products_bfloat16(state, two, x, stride, w, count, starts, starts_stride, sums, ahead, lines)


@_inner
def _configured(state, count, before):
    if count != before:
        amx_tiles.configure(state, count)
    return count


@_inner
def _run_codes_amx(args, variant, state, x, first_row, rows, block, sums, configured):
    """A block of codes for up to _ROWS_OF_CODES rows: some steps at a time are made words for all of them."""
    stride, steps, of_step = v.word(args, X_STRIDE), v.word(args, STEPS), tiles.weight_bytes(variant)
    words = _decoded()
    _begin(args, block, rows, sums)
    weight = v.word(args, WEIGHT) + block * v.word(args, BLOCK_BYTES)
    for first in range(0, steps, _DECODED_STEPS):
        count = min(_DECODED_STEPS, steps - first)
        tiles.decode(variant, weight + first * of_step, count, words)
        for row in range(0, rows, amx_tiles.ROWS):
            here = min(amx_tiles.ROWS, rows - row)
            configured = _configured(state, here, configured)
            at, place = x + (first_row + row) * stride + first * amx.ROW_BYTES, sums + row * STEP_BYTES
            _products(
                variant, state, here > amx.ROWS, at, stride, words, count, place, STEP_BYTES, place, weight, 0
            )  # fmt: skip
    _end(args, variant, sums, first_row, rows, block)
    return configured


@_inner
def _run_amx(args, step, chunk, variant):
    expert = _expert_of(args, chunk)
    if expert < 0:
        return
    first_row, end_row, first, last = _work(args, step, chunk, expert)
    x, stride, at_once = v.word(args, X), v.word(args, X_STRIDE), v.word(args, ROWS_AT_ONCE)
    x += expert * v.word(args, X_GROUP)
    block_bytes, count_of_products = v.word(args, BLOCK_BYTES), v.word(args, STEPS) // amx_tiles.STEPS
    sums, sums_of_codes, state, configured = _sums_of_tiles(), _sums_of_codes(), _amx_state(), np.int64(0)
    while first_row < end_row:
        rows = min(at_once, end_row - first_row)
        count_of_tiles = (rows + amx_tiles.ROWS - 1) // amx_tiles.ROWS
        # Each tile asks for its share of the next block.
        lines = max(1, amx_tiles.LINES // count_of_tiles)
        for block in range(first, last):
            if tiles.is_coded(variant):
                configured = _run_codes_amx(args, variant, state, x, first_row, rows, block, sums_of_codes, configured)
                continue
            ahead = _ahead(args, step, chunk, block, last, count_of_tiles == 1)
            starts, weight = v.word(args, STARTS) + block * BLOCK * 4, v.word(args, WEIGHT) + block * block_bytes
            for row in range(0, rows, amx_tiles.ROWS):
                count = min(amx_tiles.ROWS, rows - row)
                configured = _configured(state, count, configured)
                _products(
                    variant, state, count > amx.ROWS, x + (first_row + row) * stride, stride, weight,
                    count_of_products, starts, 0, sums, ahead, lines,
                )  # fmt: skip
                _end(args, variant, sums, first_row + row, count, block)
                ahead += count_of_products * lines * 64
        first_row += rows
    amx.release(state)


# What makes words of codes.
_CODES = tiles.mxfp4_wide if v.HAS_WIDE else tiles.mxfp4_float32


@op
def linear_amx_bfloat16(args, step, chunk, thread):
    _run_amx(args, step, chunk, tiles.bfloat16_wide())


@op
def linear_amx_mxfp4(args, step, chunk, thread):
    _run_amx(args, step, chunk, _CODES())


@op
def linear_amx_int8(args, step, chunk, thread):
    _run_amx(args, step, chunk, tiles.int8_wide())


# Without ------------------------------------------------------------------------------------------------------


@op
def linear_float32(args, step, chunk, thread):
    _run(args, step, chunk, tiles.float32_wide())


@op
def linear_float32_narrow(args, step, chunk, thread):
    _run(args, step, chunk, tiles.float32_narrow())


@op
def linear_bfloat16(args, step, chunk, thread):
    _run(args, step, chunk, tiles.bfloat16_wide())


@op
def linear_bfloat16_float32(args, step, chunk, thread):
    _run(args, step, chunk, tiles.bfloat16_float32())


@op
def linear_mxfp4(args, step, chunk, thread):
    _run(args, step, chunk, tiles.mxfp4_wide())


@op
def linear_mxfp4_float32(args, step, chunk, thread):
    _run(args, step, chunk, tiles.mxfp4_float32())


@op
def linear_int8(args, step, chunk, thread):
    _run(args, step, chunk, tiles.int8_wide())


@op
def linear_int8_narrow(args, step, chunk, thread):
    _run(args, step, chunk, tiles.int8_narrow())


@op_chunks
def linear_chunks(args, step):
    return _chunks(args, step)


# Of a kind: whether this CPU has the instructions, their name, what uses them, and what runs without.
_RUNS: dict[str, tuple[bool, str, Native, Native]] = {
    "float32": (v.HAS_WIDE, "avx512", linear_float32, linear_float32_narrow),
    "bfloat16": (amx.HAS_PAIRS, "avx512_bf16", linear_bfloat16, linear_bfloat16_float32),
    "mxfp4": (v.HAS_BFLOAT16_DOT, "avx512_bf16", linear_mxfp4, linear_mxfp4_float32),
    "int8": (v.HAS_BYTE_DOT, "avx512_vnni", linear_int8, linear_int8_narrow),
}


_RUNS_AMX: dict[str, Native] = {
    "bfloat16": linear_amx_bfloat16,
    "mxfp4": linear_amx_mxfp4,
    "int8": linear_amx_int8,
}
_OF_BFLOAT16 = ("bfloat16", "mxfp4")


def path(kind: str, use: Instructions = ALL) -> str:
    """What runs a kind on this CPU, in a word."""
    return _run_of(kind, use)[0]


def _run_of(kind: str, use: Instructions, whole_tiles: bool = True) -> tuple[str, Native]:
    has, name, wide, narrow = _RUNS[kind]
    allowed = use.bfloat16 or kind not in _OF_BFLOAT16
    if use.tiles and allowed and amx.AVAILABLE and whole_tiles and kind in _RUNS_AMX:
        return "amx", _RUNS_AMX[kind]
    return (name, wide) if has and allowed and use.wide else ("portable", narrow)


def input_dtype(kind: str, use: Instructions = ALL) -> torch.dtype:
    """What rows are for weights of a kind. Without the instruction for pairs of bfloat16 their inputs are float32: half
    of the conversions are gone, and nothing is rounded between ops."""
    if kind == "int8":
        return torch.uint8
    return torch.bfloat16 if kind in _OF_BFLOAT16 and amx.HAS_PAIRS and use.bfloat16 else torch.float32


# Ops -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows at an address, `stride` bytes apart; of kind int8, the address of their scales, too. `group`: bytes from an
    expert's first row to the next one's, where all of them see all rows (the heads of a latent do)."""

    address: int
    stride: int
    scales: int = 0
    group: int = 0


@dataclass(frozen=True, slots=True)
class LinearPlaces:
    """Addresses of what says which rows are whose; each row of the step stands at `top_k` places."""

    starts: int  # int32 [experts + 1]: the first place of each expert, and the end of the last
    chosen: int  # int32 [experts]: those that have places, ascending, then -1
    top_k: int


def linear(
    weight: PackedWeight,
    x: Rows,
    out: Rows,
    dtype: torch.dtype,
    ending: str = STORE,
    rows_at: int = ROWS,
    places: LinearPlaces | None = None,
    threads: int = 1,
    activation: str = "silu",
    limit: float = 0.0,
    use: Instructions = ALL,
) -> Op:
    """`out` is of `dtype`. The step's word `rows_at` says how many rows there are. `activation` and `limit` are a
    gate's (models/spec.py). Where there are tiles, they run weights whose rows are whole ones.

    With experts, `places` says which rows of x and of `out` are whose. `threads` is how many will run the program.
    """
    if weight.gated != (ending == GATE):
        raise ValueError(f"a gated weight is packed as such: gated={weight.gated}, ending {ending!r}")
    per_chunk = blocks_of_a_chunk(weight.blocks, weight.block_bytes, threads)
    words = [0] * _WORDS
    words[X], words[X_STRIDE], words[X_SCALES] = x.address, x.stride, x.scales
    words[WEIGHT], words[STARTS] = weight.weight.data_ptr(), weight.starts.data_ptr()
    words[SCALES] = 0 if weight.scales is None else weight.scales.data_ptr()
    words[BIAS] = 0 if weight.bias is None else weight.bias.data_ptr()
    words[STEPS] = weight.steps
    words[TAIL_BYTES] = weight.inputs % PER_STEP[weight.kind] * input_dtype(weight.kind, use).itemsize
    words[BLOCKS], words[PER_CHUNK] = weight.blocks, per_chunk
    words[CHUNKS] = -(-weight.blocks // per_chunk)
    words[OUTPUTS], words[OUT], words[OUT_STRIDE] = weight.outputs, out.address, out.stride
    row_bytes = weight.inputs * input_dtype(weight.kind, use).itemsize
    words[ENDING], words[ROWS_AT] = _ENDINGS[ending, dtype], rows_at
    # Of a step of codes one product is made.
    whole = weight.kind == "mxfp4" or weight.inputs % (amx_tiles.STEPS * PER_STEP[weight.kind]) == 0
    _, run = _run_of(weight.kind, use, whole)
    rows_of_tile = amx_tiles.ROWS if run is _RUNS_AMX.get(weight.kind) else WIDE_ROWS
    words[ROWS_AT_ONCE] = max(rows_of_tile, _INPUT_BYTES_AT_ONCE // row_bytes // rows_of_tile * rows_of_tile)
    if weight.kind == "mxfp4":
        words[ROWS_AT_ONCE] = min(words[ROWS_AT_ONCE], _ROWS_OF_CODES)
    words[THREADS], words[EXPERTS] = threads, weight.experts
    if places is not None:
        words[PLACES], words[CHOSEN], words[TOP_K] = places.starts, places.chosen, places.top_k
    words[X_GROUP], words[OUT_GROUP] = x.group, out.group
    words[BLOCK_BYTES] = weight.block_bytes
    words[ACTIVATION], words[LIMIT] = _ACTIVATIONS[activation], v.bits_of_float(limit)
    return Op(run, linear_chunks, words, (weight,))


def follow(ops: Sequence[Op]) -> None:
    """Let every linear of a program ask for the first weights of the next one when it comes to its end."""
    linears = [one for one in ops if one.chunks is linear_chunks]
    for one, following in pairwise(linears):
        if following.words[EXPERTS] == 1:
            one.words[NEXT] = following.words[WEIGHT]  # type: ignore[index]


# Quantizing inputs -----------------------------------------------------------------------------------------

Q_X, Q_X_STRIDE, Q_WIDTH, Q_OUT, Q_OUT_STRIDE, Q_SCALES, Q_BFLOAT16, Q_ROWS_AT, _Q_WORDS = range(9)
_QUANTIZE_ROWS = 4


@_inner
def quantize_row(x, is_bfloat16, width, out):
    """Bytes rint(x · 127 / max|x|) + 128; the scale max|x| / 127, NaN where a value isn't finite."""
    peak, odd = v.zeros(), v.zeros()
    for at in range(0, width, LANES):
        value = v.load_part(x, at, width - at, is_bfloat16)
        peak = v.maximum(v.absolute(value), peak)
        odd = odd + value * v.zeros()
    most = v.largest(peak)
    inverse = np.float32(0.0)
    if most > np.float32(0.0):
        inverse = np.float32(127.0) / most
    for at in range(0, width, LANES):
        lanes = min(LANES, width - at)
        value = v.to_ints(v.load_part(x, at, lanes, is_bfloat16) * v.spread(inverse)) + v.spread_int(128)
        # Fewer bytes than a vector are written one by one.
        if lanes == LANES:
            v.store_bytes(out, at, value)
        else:
            v.store_bytes_part(out, at, value, lanes)
    return most / np.float32(127.0) + v.total(odd)


@op
def quantize(args, step, chunk, thread):
    end = min((chunk + 1) * _QUANTIZE_ROWS, v.word(step, v.word(args, Q_ROWS_AT)))
    for row in range(chunk * _QUANTIZE_ROWS, end):
        x = v.word(args, Q_X) + row * v.word(args, Q_X_STRIDE)
        out = v.word(args, Q_OUT) + row * v.word(args, Q_OUT_STRIDE)
        scale = quantize_row(x, v.word(args, Q_BFLOAT16) != 0, v.word(args, Q_WIDTH), out)
        v.store_f32(v.word(args, Q_SCALES), row, scale)


@op_chunks
def quantize_chunks(args, step):
    return (v.word(step, v.word(args, Q_ROWS_AT)) + _QUANTIZE_ROWS - 1) // _QUANTIZE_ROWS


def quantize_rows(x: Rows, dtype: torch.dtype, width: int, out: Rows, rows_at: int = ROWS) -> Op:
    """Rows of `dtype` -> bytes and `out.scales`, as linears of kind int8 read them."""
    words = [0] * _Q_WORDS
    words[Q_X], words[Q_X_STRIDE], words[Q_WIDTH] = x.address, x.stride, width
    words[Q_OUT], words[Q_OUT_STRIDE], words[Q_SCALES] = out.address, out.stride, out.scales
    words[Q_BFLOAT16], words[Q_ROWS_AT] = int(dtype == torch.bfloat16), rows_at
    return Op(quantize, quantize_chunks, words)
