"""A gated delta net as ops of the CPU program: the formulas of reference.py, row by row.

    mixed (q k v b a z of all rows) -delta_rows-> attended          a chunk is a sequence and a key head
                                    -keep_rows->  kept inputs       a chunk is a sequence

A chunk runs the kept rows again that were accepted, then the new ones, on the states of the value heads that its key
head serves. Up to where the sequence is settled they are changed in place; behind it, in the thread's own copy. Of the
rest of the step a row reads nothing, so its bits depend on the text alone.
"""

from __future__ import annotations

import numba
import numpy as np
import torch

from kernels import cpu_vectors as v
from kernels.cpu_program import STATE_COUNT, STATES, Op, op, op_chunks
from kernels.delta_rule import table
from kernels.delta_rule.reference import LENGTH_EPSILON, Memory, Net
from kernels.linear.cpu import Rows
from kernels.linear.tiles import LANES

# Words of both ops.
(
    BFLOAT16, MIXED, MIXED_ROW, OUT, OUT_ROW, MEMORY, INPUTS, PLACES, KEPT, KEY_HEADS, GROUP, KEY_DIM, VALUE_DIM, TAPS,
    CONVOLUTION, FADING, FADING_BIAS, NORM, EPSILON, SPACE, SPACE_OF_THREAD,
) = range(21)  # fmt: skip
_FIRST, _COUNT, _STATE, _START, _BEGIN, _SETTLED, _COLUMNS = (
    table.FIRST, table.COUNT, table.STATE, table.START, table.BEGIN, table.SETTLED, table.COLUMNS
)  # fmt: skip
_EPSILON = np.float32(LENGTH_EPSILON)


@numba.njit(inline="always")
def _of_sequence(step, sequence, column):
    return np.int64(v.load_i32(v.word(step, STATES), sequence * _COLUMNS + column))


@numba.njit(error_model="numpy")
def _inputs_at(args, step, sequence, position):
    """Address of the row at a position of the text."""
    start = _of_sequence(step, sequence, _START)
    if position >= start:
        return v.word(args, MIXED) + (_of_sequence(step, sequence, _FIRST) + position - start) * v.word(args, MIXED_ROW)
    places, size = v.word(args, PLACES), v.word(args, KEPT) * (2 if v.word(args, BFLOAT16) != 0 else 4)
    return v.word(args, INPUTS) + (_of_sequence(step, sequence, _STATE) * places + position % places) * size


@numba.njit(error_model="numpy")
def _mix(args, step, sequence, position, channel, width, to):
    """to [width] = silu of the convolution of some neighbouring channels."""
    taps, bfloat16 = v.word(args, TAPS), v.word(args, BFLOAT16) != 0
    key_heads, group = v.word(args, KEY_HEADS), v.word(args, GROUP)
    channels = key_heads * (2 * v.word(args, KEY_DIM) + group * v.word(args, VALUE_DIM))
    for i in range(0, width, LANES):
        v.store_part(to, i, v.zeros(), width - i, False)
    for at in range(max(0, position - taps + 1), position + 1):
        row = _inputs_at(args, step, sequence, at)
        weights = v.word(args, CONVOLUTION) + (at - position + taps - 1) * channels * 4
        for i in range(0, width, LANES):
            value = v.load_part(row, channel + i, width - i, bfloat16)
            weight = v.load_part(weights, channel + i, width - i, False)
            total = v.multiply_add(value, weight, v.load_part(to, i, width - i, False))
            v.store_part(to, i, total, width - i, False)
    for i in range(0, width, LANES):
        total = v.load_part(to, i, width - i, False)
        v.store_part(to, i, total / (v.spread(1.0) + v.exps(v.zeros() - total)), width - i, False)


@numba.njit(error_model="numpy")
def _normed(x, width, scale):
    """x divided by its length, times `scale`; in place."""
    squares = v.zeros()
    for i in range(0, width, LANES):
        value = v.load_part(x, i, width - i, False)
        squares = v.multiply_add(value, value, squares)
    factor = v.spread(scale / np.sqrt(v.total(squares) + _EPSILON))
    for i in range(0, width, LANES):
        v.store_part(x, i, v.load_part(x, i, width - i, False) * factor, width - i, False)


@numba.njit(error_model="numpy")
def _change(state, q, k, values, key_dim, value_dim, fading, rate, read):
    """The delta rule on the state of a value head, and what the row reads of it, `read` [value_dim]."""
    fades, rates = v.spread(fading), v.spread(rate)
    for j in range(0, value_dim, LANES):
        count, known = value_dim - j, v.zeros()
        for i in range(key_dim):
            old = v.load_part(state, i * value_dim + j, count, False) * fades
            known = v.multiply_add(old, v.spread(v.load_f32(k, i)), known)
        change = (v.load_part(values, j, count, False) - known) * rates
        total = v.zeros()
        for i in range(key_dim):
            old = v.load_part(state, i * value_dim + j, count, False) * fades
            new = v.multiply_add(v.spread(v.load_f32(k, i)), change, old)
            v.store_part(state, i * value_dim + j, new, count, False)
            total = v.multiply_add(new, v.spread(v.load_f32(q, i)), total)
        v.store_part(read, j, total, count, False)


@numba.njit(error_model="numpy")
def _norm_and_gate(args, read, gate, gate_at, out, out_at):
    """out = RMSNorm(read) · silu(gate), of a value head."""
    width, bfloat16 = v.word(args, VALUE_DIM), v.word(args, BFLOAT16) != 0
    squares = v.zeros()
    for i in range(0, width, LANES):
        value = v.load_part(read, i, width - i, False)
        squares = v.multiply_add(value, value, squares)
    mean = v.total(squares) / np.float32(width) + v.float_in(v.word(args, EPSILON))
    scale = v.spread(np.float32(1.0) / np.sqrt(mean))
    for i in range(0, width, LANES):
        value = v.load_part(read, i, width - i, False) * scale * v.load_part(v.word(args, NORM), i, width - i, False)
        z = v.load_part(gate, gate_at + i, width - i, bfloat16)
        value = value * (z / (v.spread(1.0) + v.exps(v.zeros() - z)))
        v.store_part(out, out_at + i, value, width - i, bfloat16)


@numba.njit(error_model="numpy")
def _number(address, index, bfloat16):
    if bfloat16:
        return v.load_bf16(address, index)
    return v.load_f32(address, index)


@numba.njit(error_model="numpy")
def _copy(source, target, count):
    for i in range(0, count, LANES):
        v.store_part(target, i, v.load_part(source, i, count - i, False), count - i, False)


@op_chunks
def delta_chunks(args, step):
    return v.word(step, STATE_COUNT) * v.word(args, KEY_HEADS)


@op
def delta_rows(args, step, chunk, thread):
    key_heads, group = v.word(args, KEY_HEADS), v.word(args, GROUP)
    key_dim, value_dim, bfloat16 = v.word(args, KEY_DIM), v.word(args, VALUE_DIM), v.word(args, BFLOAT16) != 0
    sequence, key_head = chunk // key_heads, chunk % key_heads
    heads, keys = key_heads * group, key_heads * key_dim
    channels = 2 * keys + heads * value_dim
    start, settled = _of_sequence(step, sequence, _START), _of_sequence(step, sequence, _SETTLED)
    begin, end = _of_sequence(step, sequence, _BEGIN), start + _of_sequence(step, sequence, _COUNT)
    size = key_dim * value_dim
    of_sequence = _of_sequence(step, sequence, _STATE) * heads + key_head * group
    states = v.word(args, MEMORY) + of_sequence * size * 4
    q = v.word(args, SPACE) + thread * v.word(args, SPACE_OF_THREAD)
    k = q + key_dim * 4
    values = k + key_dim * 4
    read = values + group * value_dim * 4
    own = read + value_dim * 4
    if start == 0:
        for i in range(0, group * size, LANES):
            v.store_part(states, i, v.zeros(), group * size - i, False)
    for position in range(begin, end):
        if position == settled:
            _copy(states, own, group * size)
            states = own
        _mix(args, step, sequence, position, key_head * key_dim, key_dim, q)
        _mix(args, step, sequence, position, keys + key_head * key_dim, key_dim, k)
        _mix(args, step, sequence, position, 2 * keys + key_head * group * value_dim, group * value_dim, values)
        _normed(q, key_dim, np.float32(1.0) / np.sqrt(np.float32(key_dim)))
        _normed(k, key_dim, np.float32(1.0))
        row = _inputs_at(args, step, sequence, position)
        for one in range(group):
            head = key_head * group + one
            rate = np.float32(1.0) / (np.float32(1.0) + np.exp(-_number(row, channels + head, bfloat16)))
            a = _number(row, channels + heads + head, bfloat16) + v.load_f32(v.word(args, FADING_BIAS), head)
            # Of a large number the exponential has no room, and its softplus is the number.
            soft = np.log1p(np.exp(a)) if a < np.float32(20.0) else a
            fading = np.exp(-v.load_f32(v.word(args, FADING), head) * soft)
            _change(states + one * size * 4, q, k, values + one * value_dim * 4, key_dim, value_dim, fading, rate, read)
            if position >= start:
                row_of_out = _of_sequence(step, sequence, _FIRST) + position - start
                out = v.word(args, OUT) + row_of_out * v.word(args, OUT_ROW)
                _norm_and_gate(args, read, row, channels + 2 * heads + head * value_dim, out, head * value_dim)


@op_chunks
def keep_chunks(args, step):
    return v.word(step, STATE_COUNT)


@op
def keep_rows(args, step, chunk, thread):
    """The inputs of a sequence's last rows, at position modulo their number."""
    places, kept, bfloat16 = v.word(args, PLACES), v.word(args, KEPT), v.word(args, BFLOAT16) != 0
    start = _of_sequence(step, chunk, _START)
    end = start + _of_sequence(step, chunk, _COUNT)
    of_sequence = _of_sequence(step, chunk, _STATE) * places
    for position in range(max(start, end - places), end):
        row = v.word(args, MIXED) + (_of_sequence(step, chunk, _FIRST) + position - start) * v.word(args, MIXED_ROW)
        at = (of_sequence + position % places) * kept
        for i in range(0, kept, LANES):
            v.store_part(v.word(args, INPUTS), at + i, v.load_part(row, i, kept - i, bfloat16), kept - i, bfloat16)


def space_bytes(net: Net) -> int:
    """Of a thread."""
    group = net.value_heads // net.key_heads
    numbers = 2 * net.key_dim + (group + 1) * net.value_dim + group * net.key_dim * net.value_dim
    return -(-numbers * 4 // 64) * 64


def delta_ops(
    net: Net,
    memory: Memory,
    norm: torch.Tensor,  # [value_dim] float32
    epsilon: float,
    mixed: Rows,  # in the dtype of activations: q, k, v, b, a, z
    out: Rows,
    space: torch.Tensor,  # uint8 [threads, space_bytes]
) -> list[Op]:
    """From `mixed` to `out`, of the sequences in the step's table of states."""
    fading = torch.exp(net.decay)
    words = (
        int(memory.inputs.dtype == torch.bfloat16), mixed.address, mixed.stride, out.address, out.stride,
        memory.states.data_ptr(), memory.inputs.data_ptr(), memory.inputs.shape[1], memory.inputs.shape[2],
        net.key_heads, net.value_heads // net.key_heads, net.key_dim, net.value_dim, len(net.convolution),
        net.convolution.data_ptr(), fading.data_ptr(), net.decay_bias.data_ptr(), norm.data_ptr(),
        v.bits_of_float(epsilon), space.data_ptr(), space.stride(0),
    )  # fmt: skip
    keeps = (net, memory, norm, fading, space)
    return [Op(delta_rows, delta_chunks, words, keeps), Op(keep_rows, keep_chunks, words)]
