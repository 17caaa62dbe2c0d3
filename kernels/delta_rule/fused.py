"""A gated delta net in Triton: the formulas of reference.py, row by row.

    mixed (q k v b a z of all rows) -delta_rule-> read [R, value_heads, value_dim]   a program: sequence, value head and
                                                                                     some columns of its state
                                    -keep_rows--> kept inputs                        sequence and some of their numbers
    read, z                         -norm_gate--> attended                           row and value head

A program of the first kernel holds its columns of the state in registers, runs the kept rows again that were accepted,
then the new ones, and puts the state back as it is behind the last settled row. There is one loop over rows, however
many there are, and what is multiplied and added in one rounding is written so and not left to the compiler: a row's
bits depend on the text alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.ahead_of_time import Compilation, signature_of
from kernels.delta_rule import table as columns
from kernels.delta_rule.reference import LENGTH_EPSILON, Memory, Net
from kernels.dependent import start_next_early, wait_for_kernel_before
from kernels.launch import ceil_div, launch, power_of_two

# Numbers of the state that a program of one warp holds: 64 of each of its threads.
NUMBERS = 1024
# Of a row's kept inputs that a program copies.
PIECE = 1024

FIRST, COUNT, STATE = (tl.constexpr(each) for each in (columns.FIRST, columns.COUNT, columns.STATE))
START, BEGIN, SETTLED = (tl.constexpr(each) for each in (columns.START, columns.BEGIN, columns.SETTLED))
COLUMNS = tl.constexpr(columns.COLUMNS)
EPSILON = tl.constexpr(LENGTH_EPSILON)


@triton.jit
def _taps(weights, channel, inside, CHANNELS: tl.constexpr, TAPS: tl.constexpr, WINDOW: tl.constexpr):
    """Weights of the convolution of some channels, [WINDOW, …]: zeros behind the last."""
    tap = tl.arange(0, WINDOW)
    present = (tap < TAPS)[:, None] & inside[None, :]
    return tl.load(weights + tap[:, None] * CHANNELS + channel[None, :], mask=present, other=0.0)


@triton.jit
def _convolved(rows, present, taps, channel, inside):
    """silu of the convolution of some channels of the last rows."""
    x = tl.load(rows[:, None] + channel[None, :], mask=present[:, None] & inside[None, :], other=0.0).to(tl.float32)
    total = tl.sum(x * taps, axis=0)
    return total / (1.0 + tl.exp(-total))


@triton.jit
def delta_rule_kernel(
    mixed, table, states, inputs, convolution, decay, decay_bias, read,
    ROW: tl.constexpr, KEPT: tl.constexpr, PLACES: tl.constexpr, KEY_HEADS: tl.constexpr, GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, TAPS: tl.constexpr,
    WINDOW: tl.constexpr, KEY: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Program (sequence, value head, block of VALUES columns). WINDOW, KEY: powers of two that hold TAPS, KEY_DIM."""
    wait_for_kernel_before()
    HEADS: tl.constexpr = KEY_HEADS * GROUP
    KEYS: tl.constexpr = KEY_HEADS * KEY_DIM
    CHANNELS: tl.constexpr = 2 * KEYS + HEADS * VALUE_DIM
    words = table + tl.program_id(0) * COLUMNS
    count = tl.load(words + COUNT)
    if count > 0:
        head = tl.program_id(1)
        start, begin, settled = tl.load(words + START), tl.load(words + BEGIN), tl.load(words + SETTLED)
        first, state = tl.load(words + FIRST).to(tl.int64), tl.load(words + STATE).to(tl.int64)
        # Positions from `start` on are new rows, those before it are kept.
        new, kept = mixed + first * ROW, inputs + state * (PLACES * KEPT)
        i, j = tl.arange(0, KEY), tl.program_id(2) * VALUES + tl.arange(0, VALUES)
        of_keys, of_values = i < KEY_DIM, j < VALUE_DIM
        q_channel, v_channel = (head // GROUP) * KEY_DIM + i, 2 * KEYS + head * VALUE_DIM + j
        q_taps = _taps(convolution, q_channel, of_keys, CHANNELS, TAPS, WINDOW)
        k_taps = _taps(convolution, q_channel + KEYS, of_keys, CHANNELS, TAPS, WINDOW)
        v_taps = _taps(convolution, v_channel, of_values, CHANNELS, TAPS, WINDOW)
        speed, bias = tl.exp(tl.load(decay + head)), tl.load(decay_bias + head)
        inside = of_keys[:, None] & of_values[None, :]
        own = states + (state * HEADS + head) * (KEY_DIM * VALUE_DIM) + i[:, None] * VALUE_DIM + j[None, :]
        matrix = tl.load(own, mask=inside & (start > 0), other=0.0)
        tap = tl.arange(0, WINDOW) - (TAPS - 1)
        for row in range(begin - start, count):
            position = start + row
            if position == settled:
                tl.store(own, matrix, mask=inside)
            at = position + tap
            present = (tap <= 0) & (at >= 0)
            rows = tl.where(at >= start, new + (at - start).to(tl.int64) * ROW,
                            kept + (at % PLACES).to(tl.int64) * KEPT)  # fmt: skip
            q = _convolved(rows, present, q_taps, q_channel, of_keys)
            k = _convolved(rows, present, k_taps, q_channel + KEYS, of_keys)
            v = _convolved(rows, present, v_taps, v_channel, of_values)
            q = q * (tl.rsqrt(tl.sum(q * q, axis=0) + EPSILON) * KEY_DIM**-0.5)
            k = k * tl.rsqrt(tl.sum(k * k, axis=0) + EPSILON)
            last = new + (position - start).to(tl.int64) * ROW
            if row < 0:
                last = kept + (position % PLACES).to(tl.int64) * KEPT
            rate = 1.0 / (1.0 + tl.exp(-tl.load(last + CHANNELS + head).to(tl.float32)))
            a = tl.load(last + CHANNELS + HEADS + head).to(tl.float32) + bias
            # Of a large number the exponential has no room, and its softplus is the number.
            soft = tl.where(a < 20.0, tl.log(1.0 + tl.exp(a)), a)
            matrix = matrix * tl.exp(-speed * soft)
            change = (v - tl.sum(matrix * k[:, None], axis=0)) * rate
            matrix = tl.fma(tl.broadcast_to(k[:, None], (KEY, VALUES)), tl.broadcast_to(change[None, :], (KEY, VALUES)),
                            matrix)  # fmt: skip
            if row >= 0:
                to = read + ((first + row) * HEADS + head) * VALUE_DIM + j
                tl.store(to, tl.sum(matrix * q[:, None], axis=0), mask=of_values)
        if settled == start + count:
            tl.store(own, matrix, mask=inside)


@triton.jit
def keep_rows_kernel(
    mixed, table, inputs, ROW: tl.constexpr, KEPT: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr
):
    """The inputs of a sequence's last rows, at position modulo their number. Program (sequence, piece of a row)."""
    start_next_early()
    wait_for_kernel_before()
    words = table + tl.program_id(0) * COLUMNS
    start, count = tl.load(words + START), tl.load(words + COUNT)
    first, state = tl.load(words + FIRST).to(tl.int64), tl.load(words + STATE).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    for row in range(tl.maximum(count - PLACES, 0), count):
        x = tl.load(mixed + (first + row) * ROW + at, mask=at < KEPT)
        tl.store(inputs + (state * PLACES + (start + row) % PLACES) * KEPT + at, x, mask=at < KEPT)


@triton.jit
def norm_gate_kernel(
    read, gate, weight, out, epsilon, ROW: tl.constexpr, HEADS: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out = RMSNorm(read) · silu(gate). Program (row, value head)."""
    start_next_early()
    wait_for_kernel_before()
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, BLOCK)
    inside = at < VALUE_DIM
    x = tl.load(read + (row * HEADS + head) * VALUE_DIM + at, mask=inside, other=0.0)
    z = tl.load(gate + row * ROW + head * VALUE_DIM + at, mask=inside, other=0.0).to(tl.float32)
    normed = x * tl.rsqrt(tl.sum(x * x, axis=0) / VALUE_DIM + epsilon) * tl.load(weight + at, mask=inside, other=0.0)
    gated = normed * (z / (1.0 + tl.exp(-z)))
    tl.store(out + (row * HEADS + head) * VALUE_DIM + at, gated.to(out.dtype.element_ty), mask=inside)


def delta_rule(
    net: Net,
    memory: Memory,
    mixed: torch.Tensor,  # [R, channels + 2 · value_heads + value_heads · value_dim]: q, k, v, b, a, z
    table: torch.Tensor,  # [S, COLUMNS] int32, on the device; a sequence of no rows has no work
    read: torch.Tensor,  # [R, value_heads, value_dim] float32, written here for the rows of sequences
) -> None:
    assert mixed.is_contiguous() and table.is_contiguous() and read.is_contiguous()
    assert mixed.dtype == memory.inputs.dtype
    sizes = _sizes(net, memory)
    blocks = ceil_div(net.value_dim, sizes["VALUES"])
    of_rows = {name: sizes[name] for name in ("KEPT", "PLACES")} | {"ROW": mixed.shape[1]}
    if len(table):
        launch(
            delta_rule_kernel, (len(table), net.value_heads, blocks), mixed, table, memory.states, memory.inputs,
            net.convolution, net.decay, net.decay_bias, read, warps=1, fp_fusion=False, ROW=mixed.shape[1], **sizes,
        )  # fmt: skip
        pieces = ceil_div(sizes["KEPT"], PIECE)
        launch(keep_rows_kernel, (len(table), pieces), mixed, table, memory.inputs, BLOCK=PIECE, **of_rows)


def norm_gate(
    read: torch.Tensor,  # [R, value_heads, value_dim] float32
    gate: torch.Tensor,  # [R, value_heads · value_dim], rows may be further apart than they are wide
    weight: torch.Tensor,  # [value_dim] float32
    epsilon: float,
) -> torch.Tensor:  # [R, value_heads · value_dim], the gate's dtype
    assert read.is_contiguous() and gate.stride(1) == 1
    rows, heads, width = read.shape
    out = torch.empty(rows, heads * width, dtype=gate.dtype, device=gate.device)
    launch(
        norm_gate_kernel, (rows, heads), read, gate, weight, out, epsilon, warps=1, ROW=gate.stride(0), HEADS=heads,
        VALUE_DIM=width, BLOCK=power_of_two(width),
    )  # fmt: skip
    return out


def _sizes(net: Net, memory: Memory) -> dict[str, int]:
    places, kept = memory.inputs.shape[1:]
    taps, key = len(net.convolution), power_of_two(net.key_dim)
    return {
        "KEPT": kept, "PLACES": places, "KEY_HEADS": net.key_heads, "GROUP": net.value_heads // net.key_heads,
        "KEY_DIM": net.key_dim, "VALUE_DIM": net.value_dim, "TAPS": taps, "WINDOW": power_of_two(taps), "KEY": key,
        "VALUES": min(max(NUMBERS // key, 1), power_of_two(net.value_dim)),
    }  # fmt: skip


def compilations(arch: int) -> Iterator[Compilation]:
    """Qwen3-Next's sizes."""
    keys, values, dim, rows = 16, 32, 128, 51
    channels = 2 * keys * dim + values * dim
    heads, weights = torch.empty(values, device="meta"), torch.empty(4, channels, device="meta")
    kept = torch.empty(1, rows, channels + 2 * values, device="meta")
    sizes = _sizes(Net(keys, values, dim, dim, weights, heads, heads), Memory(kept, kept))
    row = {"ROW": channels + 2 * values + values * dim}
    of_rows = {"KEPT": sizes["KEPT"], "PLACES": rows, "BLOCK": PIECE}
    types = dict.fromkeys(("states", "convolution", "decay", "decay_bias", "read", "weight"), "*fp32")
    types |= dict.fromkeys(("mixed", "inputs", "gate", "out"), "*bf16") | {"table": "*i32", "epsilon": "fp32"}

    def one(kernel: Any, constants: dict[str, int], warps: int, fp_fusion: bool = True) -> Compilation:
        constants = constants | row
        signature = signature_of(kernel, types, constants)
        return Compilation(kernel.__name__, kernel, signature, constants, warps, fp_fusion=fp_fusion)

    yield one(delta_rule_kernel, sizes, 1, fp_fusion=False)
    yield one(keep_rows_kernel, of_rows, 4)
    yield one(norm_gate_kernel, {"HEADS": values, "VALUE_DIM": dim, "BLOCK": dim}, 1)
