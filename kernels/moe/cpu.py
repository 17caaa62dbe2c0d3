"""Routing, and the way to the experts and back, as ops of the CPU program.

    choose    logits -> the experts of every row, ids ascending, and their weights
    sort      -> for every expert the rows that chose it, ascending: a *place* is one row at one expert
    gather    the inputs of all places, expert after expert
    …         the experts' linears: kernels/linear/cpu.py, each expert over its places
    combine   residual += Σ weight · what the row's experts gave, in ascending order of their ids

    place        0    1    2    3    4          starts  0 2 2 4 5      (expert 1 was not chosen)
    expert       0    0    2    2    3
    row          1    4    0    1    4          places  of row 1: 0 3

How many chunks an op has is known before the step begins, and where rows go is not: so ops over places have as
many chunks as there may be places. What is done for a row depends on that row alone, so its bits do, too (law 3).

`route_ops` and `expert_ops` put them together. Routers read float32 whatever the model's type (`widen_op`): a
rounded score sends rows elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch

from kernels.cpu_instructions import ALL, Instructions
from kernels.cpu_program import ROWS, Op, aligned, op, op_chunks
from kernels.cpu_vectors import (
    LANES,
    bits_of_float,
    float_in,
    load_bfloat16_part,
    load_f32,
    load_floats_part,
    load_i32,
    multiply_add,
    scratch,
    spread,
    store_f32,
    store_floats_part,
    store_i32,
    word,
)
from kernels.linear.cpu import GATE, STORE, LinearPlaces, Rows, linear, quantize_row
from kernels.linear.packing import PackedWeight

MOST_EXPERTS = 1024
# Rows of a chunk, and places.
_CHOOSE_ROWS, _COMBINE_ROWS, _WIDEN_ROWS = 8, 4, 8
_GATHER_PLACES, _QUANTIZE_PLACES = 16, 4


@dataclass(frozen=True, slots=True)
class Routed:
    """Where routing leaves what it found; `place` counts rows at experts, expert after expert."""

    # Those that are computed here: from `first` on, of all that are chosen among.
    experts: int
    top_k: int
    ids: np.ndarray  # [rows · top_k] int32: experts of a row, ascending
    weights: np.ndarray  # [rows · top_k] float32
    starts: np.ndarray  # [experts + 1] int32: an expert's first place
    chosen: np.ndarray  # [experts] int32: those with places, ascending, then -1
    rows: np.ndarray  # [rows · top_k] int32: the row of a place
    places: np.ndarray  # [rows · top_k] int32: the places of a row, as its ids; -1: at an expert of another rank
    first: int = 0

    @classmethod
    def empty(cls, max_rows: int, experts: int, top_k: int, first: int = 0) -> Routed:
        count = max_rows * top_k
        return cls(
            experts,
            top_k,
            ids=aligned(count, np.int32),
            weights=aligned(count, np.float32),
            starts=aligned(experts + 1, np.int32),
            chosen=aligned(experts, np.int32),
            rows=aligned(count, np.int32),
            places=aligned(count, np.int32),
            first=first,
        )


# Choose --------------------------------------------------------------------------------------------------

(
    LOGITS, BIAS, IDS, WEIGHTS, EXPERTS, TOP_K, SIGMOID, NORMALIZE, EPSILON, FLOOR, SCALE, GROUPS, TOP_GROUPS,
    BY_BEST, _CHOOSE_WORDS,
) = range(15)  # fmt: skip

_scores_of_a_row = scratch(MOST_EXPERTS * 4)
_order_of_a_row = scratch(MOST_EXPERTS * 4)
_groups_of_a_row = scratch(MOST_EXPERTS * 4)
_marks_of_a_row = scratch(MOST_EXPERTS * 4)


@op_chunks
def choose_chunks(args, step):
    return (word(step, ROWS) + _CHOOSE_ROWS - 1) // _CHOOSE_ROWS


@op
def choose(args, step, chunk, thread):
    scores, by, worth, marks = _scores_of_a_row(), _order_of_a_row(), _groups_of_a_row(), _marks_of_a_row()
    first = chunk * _CHOOSE_ROWS
    for row in range(first, min(first + _CHOOSE_ROWS, word(step, ROWS))):
        _score(args, row, scores, by)
        experts, groups = word(args, EXPERTS), word(args, GROUPS)
        for expert in range(experts):
            store_i32(marks, expert, np.int32(0))
        if groups > 1:
            _bar_groups(args, by, worth, marks)
        _mark_best(by, marks, experts, word(args, TOP_K))
        _give(args, row, scores, marks)


@numba.njit(inline="always")
def _exp(x):
    """e**x for float32 to about 2e-7 of the value: one lane of `exps` (kernels/cpu_vectors.py), but for roundings."""
    x = min(max(x, np.float32(-87.3)), np.float32(87.0))
    whole = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    # ln 2 in two parts: the first has few bits, so the product is exact.
    part = x - whole * np.float32(0.693359375) + whole * np.float32(2.12194440e-4)
    sum_ = np.float32(1.9875691500e-4)
    sum_ = sum_ * part + np.float32(1.3981999507e-3)
    sum_ = sum_ * part + np.float32(8.3334519073e-3)
    sum_ = sum_ * part + np.float32(4.1665795894e-2)
    sum_ = sum_ * part + np.float32(1.6666665459e-1)
    sum_ = sum_ * part + np.float32(5.0000001201e-1)
    sum_ = sum_ * part * part + part + np.float32(1.0)
    return sum_ * float_in((np.int32(whole) + np.int64(127)) << 23)


@numba.njit(inline="always")
def _score(args, row, scores, by):
    """scores: softmax or sigmoid of the row's logits; by: with the bias, what the choice goes by."""
    experts, bias = word(args, EXPERTS), word(args, BIAS)
    logits = word(args, LOGITS) + row * experts * 4
    if word(args, SIGMOID):
        for expert in range(experts):
            score = np.float32(1.0) / (np.float32(1.0) + _exp(-load_f32(logits, expert)))
            store_f32(scores, expert, score)
    else:
        maximum = load_f32(logits, 0)
        for expert in range(1, experts):
            maximum = max(maximum, load_f32(logits, expert))
        total = np.float32(0.0)
        for expert in range(experts):
            score = _exp(load_f32(logits, expert) - maximum)
            store_f32(scores, expert, score)
            total += score
        for expert in range(experts):
            store_f32(scores, expert, load_f32(scores, expert) / total)
    for expert in range(experts):
        added = load_f32(bias, expert) if bias != 0 else np.float32(0.0)
        store_f32(by, expert, load_f32(scores, expert) + added)


@numba.njit(inline="always")
def _bar_groups(args, by, worth, marks):
    """Mark all experts outside the best groups with -1."""
    groups, by_best = word(args, GROUPS), word(args, BY_BEST)
    size = word(args, EXPERTS) // groups
    for group in range(groups):
        best, second = np.float32(-np.inf), np.float32(-np.inf)
        for i in range(size):
            value = load_f32(by, group * size + i)
            if value > best:
                best, second = value, best
            elif value > second:
                second = value
        store_f32(worth, group, best if by_best or size == 1 else best + second)
        store_i32(marks, group * size, np.int32(0))
    # A group is marked at its first expert, until all are known.
    for _ in range(word(args, TOP_GROUPS)):
        chosen = -1
        for group in range(groups):
            if load_i32(marks, group * size) == 0 and (chosen < 0 or load_f32(worth, group) > load_f32(worth, chosen)):
                chosen = group
        store_i32(marks, chosen * size, np.int32(1))
    for group in range(groups):
        mark = np.int32(0) if load_i32(marks, group * size) == 1 else np.int32(-1)
        for i in range(size):
            store_i32(marks, group * size + i, mark)


@numba.njit(inline="always")
def _mark_best(by, marks, experts, count):
    """Mark the `count` best of those marked 0 with 1. The lower id wins a tie; where all is NaN, it wins, too."""
    for _ in range(count):
        chosen = -1
        best = np.float32(0.0)
        for expert in range(experts):
            value = load_f32(by, expert)
            if load_i32(marks, expert) == 0 and (chosen < 0 or value > best):
                chosen, best = expert, value
        store_i32(marks, chosen, np.int32(1))


@numba.njit(inline="always")
def _give(args, row, scores, marks):
    """The marked experts, ascending, and their weights."""
    experts, top_k, epsilon = word(args, EXPERTS), word(args, TOP_K), float_in(word(args, EPSILON))
    ids, weights = word(args, IDS) + row * top_k * 4, word(args, WEIGHTS) + row * top_k * 4
    found = 0
    total = np.float32(0.0)
    for expert in range(experts):
        if load_i32(marks, expert) == 1:
            score = load_f32(scores, expert)
            store_i32(ids, found, np.int32(expert))
            store_f32(weights, found, score)
            total += score
            found += 1
    factor = float_in(word(args, SCALE))
    if word(args, NORMALIZE):
        below = max(total, epsilon) if word(args, FLOOR) else total + epsilon
        for i in range(top_k):
            store_f32(weights, i, load_f32(weights, i) / below)
    for i in range(top_k):
        store_f32(weights, i, load_f32(weights, i) * factor)


# Sort ----------------------------------------------------------------------------------------------------

(_SORT_IDS, _SORT_STARTS, _SORT_CHOSEN, _SORT_ROWS, _SORT_PLACES, _SORT_EXPERTS, _SORT_TOP_K, _SORT_FIRST) = range(8)

_next_of_an_expert = scratch(MOST_EXPERTS * 4)


@op_chunks
def one_chunk(args, step):
    return min(word(step, ROWS), 1)


@op
def sort(args, step, chunk, thread):
    ids, starts, chosen = word(args, _SORT_IDS), word(args, _SORT_STARTS), word(args, _SORT_CHOSEN)
    rows, places = word(args, _SORT_ROWS), word(args, _SORT_PLACES)
    experts, top_k, first = word(args, _SORT_EXPERTS), word(args, _SORT_TOP_K), word(args, _SORT_FIRST)
    nexts = _next_of_an_expert()
    count = word(step, ROWS) * top_k
    for expert in range(experts):
        store_i32(nexts, expert, np.int32(0))
    for i in range(count):
        expert = np.int64(load_i32(ids, i)) - first
        if expert >= 0 and expert < experts:
            store_i32(nexts, expert, np.int32(load_i32(nexts, expert) + 1))
    start, used = np.int32(0), 0
    for expert in range(experts):
        store_i32(chosen, expert, np.int32(-1))
        own = load_i32(nexts, expert)
        if own > 0:
            store_i32(chosen, used, np.int32(expert))
            used += 1
        store_i32(starts, expert, start)
        store_i32(nexts, expert, start)
        start = np.int32(start + own)
    store_i32(starts, experts, start)
    # Places that other ranks have: gathering takes any row there.
    for place in range(start, count):
        store_i32(rows, place, np.int32(0))
    for i in range(count):
        expert = np.int64(load_i32(ids, i)) - first
        if expert < 0 or expert >= experts:
            # Of another rank.
            store_i32(places, i, np.int32(-1))
            continue
        place = load_i32(nexts, expert)
        store_i32(nexts, expert, np.int32(place + 1))
        store_i32(rows, np.int64(place), np.int32(i // top_k))
        store_i32(places, i, place)


# Gather --------------------------------------------------------------------------------------------------

(_FROM, _TO, _WORDS_A_ROW, _GATHER_ROWS, _GATHER_TOP_K) = range(5)


@op_chunks
def gather_chunks(args, step):
    return (word(step, ROWS) * word(args, _GATHER_TOP_K) + _GATHER_PLACES - 1) // _GATHER_PLACES


@op
def gather(args, step, chunk, thread):
    count, rows = word(args, _WORDS_A_ROW), word(args, _GATHER_ROWS)
    first = chunk * _GATHER_PLACES
    for place in range(first, min(first + _GATHER_PLACES, word(step, ROWS) * word(args, _GATHER_TOP_K))):
        source = word(args, _FROM) + np.int64(load_i32(rows, place)) * count * 4
        target = word(args, _TO) + place * count * 4
        for i in range(count):
            store_i32(target, i, load_i32(source, i))


# Combine -------------------------------------------------------------------------------------------------

(_GIVEN, _RESIDUAL, _WIDTH, _COMBINE_PLACES, _COMBINE_WEIGHTS, _COMBINE_TOP_K) = range(6)


@op_chunks
def combine_chunks(args, step):
    return (word(step, ROWS) + _COMBINE_ROWS - 1) // _COMBINE_ROWS


@op
def combine(args, step, chunk, thread):
    given, residual, width = word(args, _GIVEN), word(args, _RESIDUAL), word(args, _WIDTH)
    top_k = word(args, _COMBINE_TOP_K)
    first = chunk * _COMBINE_ROWS
    for row in range(first, min(first + _COMBINE_ROWS, word(step, ROWS))):
        to = residual + row * width * 4
        for i in range(row * top_k, (row + 1) * top_k):
            place = np.int64(load_i32(word(args, _COMBINE_PLACES), i))
            if place < 0:
                continue
            weight = spread(load_f32(word(args, _COMBINE_WEIGHTS), i))
            expert = given + place * width * 4
            for column in range(0, width, LANES):
                left = width - column
                value = multiply_add(weight, load_floats_part(expert, column, left), load_floats_part(to, column, left))
                store_floats_part(to, column, value, left)


# Other forms of rows -------------------------------------------------------------------------------------

(_NARROW, _FLOATS, _WIDEN_WIDTH) = range(3)


@op_chunks
def widen_chunks(args, step):
    return (word(step, ROWS) + _WIDEN_ROWS - 1) // _WIDEN_ROWS


@op
def widen(args, step, chunk, thread):
    width, first = word(args, _WIDEN_WIDTH), chunk * _WIDEN_ROWS
    for row in range(first, min(first + _WIDEN_ROWS, word(step, ROWS))):
        source, target = word(args, _NARROW) + row * width * 2, word(args, _FLOATS) + row * width * 4
        for i in range(0, width, LANES):
            store_floats_part(target, i, load_bfloat16_part(source, i, width - i), width - i)


(_Q_FROM, _Q_BFLOAT16, _Q_WIDTH, _Q_TO, _Q_SCALES, _Q_TOP_K) = range(6)


@op_chunks
def quantize_places_chunks(args, step):
    return (word(step, ROWS) * word(args, _Q_TOP_K) + _QUANTIZE_PLACES - 1) // _QUANTIZE_PLACES


@op
def quantize_places(args, step, chunk, thread):
    width, bfloat16, first = word(args, _Q_WIDTH), word(args, _Q_BFLOAT16) != 0, chunk * _QUANTIZE_PLACES
    for place in range(first, min(first + _QUANTIZE_PLACES, word(step, ROWS) * word(args, _Q_TOP_K))):
        source = word(args, _Q_FROM) + place * width * (2 if bfloat16 else 4)
        scale = quantize_row(source, bfloat16, width, word(args, _Q_TO) + place * width)
        store_f32(word(args, _Q_SCALES), place, scale)


# Ops -----------------------------------------------------------------------------------------------------


def _at(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def route_ops(
    logits: int,  # address of [max_rows, experts] float32
    bias: torch.Tensor | None,  # [experts] float32
    routed: Routed,
    *,
    scoring: str,
    normalize: bool,
    epsilon: float,
    normalize_floor: bool,
    scale: float,
    groups: int,
    top_groups: int,
    group_by_best: bool,
    among: int = 0,
) -> list[Op]:
    """choose and sort; the facts are those of kernels/moe/reference.py `route`. `among`: how many experts there are
    on all ranks; 0: no more than `routed` has."""
    among = among or routed.experts
    assert 1 <= routed.top_k <= among <= MOST_EXPERTS and among % groups == 0
    assert routed.top_k <= among // groups * top_groups and scoring in ("softmax", "sigmoid")
    assert routed.first + routed.experts <= among
    choice = [
        logits,
        0 if bias is None else bias.data_ptr(),
        _at(routed.ids),
        _at(routed.weights),
        among,
        routed.top_k,
        int(scoring == "sigmoid"),
        int(normalize),
        bits_of_float(epsilon),
        int(normalize_floor),
        bits_of_float(scale),
        groups,
        top_groups,
        int(group_by_best),
    ]
    sizes = [routed.experts, routed.top_k, routed.first]
    found = [_at(routed.starts), _at(routed.chosen), _at(routed.rows), _at(routed.places)]
    sorting = [_at(routed.ids), *found, *sizes]
    return [
        Op(choose, choose_chunks, choice, (bias, routed)),
        Op(sort, one_chunk, sorting, (routed,)),
    ]


def widen_op(x: Rows, width: int, out: int) -> Op:
    """bfloat16 rows, one behind the other, as float32."""
    assert x.stride == width * 2
    return Op(widen, widen_chunks, [x.address, out, width])


def gather_op(source: int, row_bytes: int, routed: Routed, target: int) -> Op:
    """target[place] = source[row of the place], at addresses, for rows of `row_bytes`."""
    assert row_bytes % 4 == 0
    return Op(gather, gather_chunks, [source, target, row_bytes // 4, _at(routed.rows), routed.top_k], (routed,))


def combine_op(given: int, width: int, routed: Routed, residual: int) -> Op:
    """residual[row] += Σ weight · given[place], at addresses; both float32, `width` numbers a row."""
    words = [given, residual, width, _at(routed.places), _at(routed.weights), routed.top_k]
    return Op(combine, combine_chunks, words, (routed,))


class PlaceBuffers:
    """What the experts' linears read and write: one set for all layers with experts of these sizes."""

    def __init__(self, max_rows: int, top_k: int, hidden: int, wide: int, dtype: torch.dtype, quantized: bool) -> None:
        count = max_rows * top_k
        self.dtype, self.quantized = dtype, quantized
        self.inputs = aligned(count * hidden * (1 if quantized else dtype.itemsize), np.uint8)
        self.input_scales = aligned(count, np.float32)
        self.gated = aligned(count * wide * dtype.itemsize, np.uint8)
        self.gated_bytes = aligned(count * wide if quantized else 0, np.uint8)
        self.gated_scales = aligned(count, np.float32)
        self.given = aligned(count * hidden, np.float32)


def expert_ops(
    gate_up: PackedWeight,
    down: PackedWeight,
    routed: Routed,
    x: Rows,  # [R, hidden] in the buffers' dtype; of kind int8: bytes and their scales
    buffers: PlaceBuffers,
    residual: int,  # address of [R, hidden] float32
    *,
    threads: int = 1,
    activation: str = "silu",
    limit: float = 0.0,
    use: Instructions = ALL,
) -> list[Op]:
    """residual[row] += Σ weight · down(f(gate) · up) over the experts that `routed` names."""
    hidden, wide, dtype, size = gate_up.inputs, gate_up.outputs, buffers.dtype, buffers.dtype.itemsize
    quantized, places = gate_up.kind == "int8", LinearPlaces(_at(routed.starts), _at(routed.chosen), routed.top_k)
    assert (down.inputs, down.outputs, down.experts) == (wide, hidden, gate_up.experts)
    assert quantized == buffers.quantized == (down.kind == "int8") and gate_up.experts == routed.experts
    row_bytes = hidden if quantized else hidden * size
    assert x.stride == row_bytes
    inputs = Rows(_at(buffers.inputs), row_bytes, _at(buffers.input_scales))
    gated = Rows(_at(buffers.gated), wide * size)
    ops = [gather_op(x.address, row_bytes, routed, inputs.address)]
    if quantized:
        ops.append(gather_op(x.scales, 4, routed, inputs.scales))
    ops.append(linear(
        gate_up, inputs, gated, dtype, GATE, places=places, threads=threads, activation=activation, limit=limit,
        use=use,
    ))  # fmt: skip
    if quantized:
        at = Rows(_at(buffers.gated_bytes), wide, _at(buffers.gated_scales))
        words: list[Any] = [gated.address, int(dtype == torch.bfloat16), wide, at.address, at.scales, routed.top_k]
        ops.append(Op(quantize_places, quantize_places_chunks, words))
        gated = at
    given = Rows(_at(buffers.given), hidden * 4)
    ops.append(linear(down, gated, given, torch.float32, STORE, places=places, threads=threads, use=use))
    ops.append(combine_op(given.address, hidden, routed, residual))
    ops[0] = Op(ops[0].run, ops[0].chunks, ops[0].words, (routed, buffers))
    return ops
