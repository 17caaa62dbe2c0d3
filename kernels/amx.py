"""AMX for compiled CPU loops: eight tiles of up to 16 rows of 64 bytes, and products of them.

    product of bfloat16:   C [m, 16] += A [m, 2·k] · B     A: rows; B [k, 16]: pairs, as linears keep them
    product of bytes:      C [m, 16] += A [m, 4·k] · B     A unsigned, B signed; exact

A product of bfloat16 adds, from zero, the even products of a row in order, and the odd ones, each with one rounding;
then both to each other and to C. It takes numbers below 2**-126 for zero. So a row's bits depend on where its products
are cut (32 inputs) and on nothing else, but they aren't those of other instructions.

The system must allow a process to use tiles: `AVAILABLE` asks when this is imported. Functions that use tiles hand on
a `state`, memory of their own stack of `STATE` bytes. Its first 64 bytes say what tiles are (`configure`), the rest is
for the emulation: with EMULATED_AMX=1 the same is computed without the instructions, on any machine, for tests.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels import cpu_vectors as v
from kernels.cpu_cache import EMULATED_AMX as EMULATED

# Rows of a tile, and bytes of a row.
ROWS, ROW_BYTES = 16, 64
TILE_BYTES = ROWS * ROW_BYTES
_CONFIG_BYTES, _TILES = 64, 8
STATE = _CONFIG_BYTES + (_TILES * TILE_BYTES if EMULATED else 0)
# Of Linux: a process asks for the state of tiles.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
# Of a word of two bfloat16: the upper one, and what moves the lower one up.
_UPPER, _SHIFT = np.int32(-65536), np.int32(65536)
_NEEDED = ("amx-tile", "amx-bf16", "amx-int8")


def _permitted() -> bool:
    """For all threads of this process and what is forked from it."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


# Whether the processor has it.
FOUND = v.HAS_BFLOAT16_DOT and all(v.FEATURES.get(name) for name in _NEEDED)
# Without permission the first instruction would end the process; without the feature its compilation would.
AVAILABLE = EMULATED or (FOUND and _permitted())
# Whether rows between ops are bfloat16: there are instructions for pairs of it.
HAS_PAIRS = AVAILABLE or v.HAS_BFLOAT16_DOT


def _instruction(name: str, *tiles: int, memory: int = 0) -> Callable[..., Any]:
    """What gives an instruction of LLVM on tiles; `memory`: how many arguments follow, an address and a stride."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given = list(arguments[1 : 1 + memory])
        if given:
            given[0] = builder.inttoptr(given[0], v.I8.as_pointer())
        v.call(builder, f"llvm.x86.{name}", ir.VoidType(), [*(ir.Constant(v.I8, each) for each in tiles), *given])
        return context.get_dummy_value()

    if memory == 0:
        return intrinsic(lambda _, state: (types.void(types.int64), generate))
    return intrinsic(lambda _, state, address, stride: (types.void(*[types.int64] * 3), generate))


@intrinsic
def _load_config(_: Any, state: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        v.call(builder, "llvm.x86.ldtilecfg", ir.VoidType(), [builder.inttoptr(arguments[0], v.I8.as_pointer())])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@numba.njit
def configure(state, rows, low_widths, high_widths):
    """Of each tile its rows, a byte, and the bytes of a row, 16 bits; those of tiles 0 to 3 and 4 to 7. A tile that
    isn't used has some, too."""
    for index in range(_CONFIG_BYTES // 8):
        v.store_i64(state, index, 0)
    v.store_i64(state, 0, 1)
    v.store_i64(state, 2, low_widths)
    v.store_i64(state, 3, high_widths)
    v.store_i64(state, 6, rows)
    if not EMULATED:
        _load_config(state)


def load(tile: int) -> Callable[..., Any]:
    """load(state, address, stride): the tile's rows, `stride` bytes apart; 0: all are the first."""
    return _emulated_load(tile) if EMULATED else _instruction("tileloadd64", tile, memory=2)


def store(tile: int) -> Callable[..., Any]:
    return _emulated_store(tile) if EMULATED else _instruction("tilestored64", tile, memory=2)


def zero(tile: int) -> Callable[..., Any]:
    return _emulated_zero(tile) if EMULATED else _instruction("tilezero", tile)


def dot_bfloat16(sums: int, a: int, b: int) -> Callable[..., Any]:
    """dot(state): tile `sums` += tile a · tile b."""
    return _emulated_dot_bfloat16(sums, a, b) if EMULATED else _instruction("tdpbf16ps", sums, a, b)


def dot_bytes(sums: int, a: int, b: int) -> Callable[..., Any]:
    return _emulated_dot_bytes(sums, a, b) if EMULATED else _instruction("tdpbusd", sums, a, b)


@numba.njit
def _nothing(state):
    pass


# release(state): the processor may forget the tiles, and switch between threads faster.
release = _nothing if EMULATED else _instruction("tilerelease")

# Emulation -----------------------------------------------------------------------------------------------------------


@numba.njit
def _rows_of(state, tile):
    return np.int64(v.load_u8(state, 48 + tile))


@numba.njit
def _words_of(state, tile):
    """32 bits each, of a row."""
    return (np.int64(v.load_u8(state, 16 + 2 * tile)) + 256 * np.int64(v.load_u8(state, 17 + 2 * tile))) // 4


def _place(tile: int) -> int:
    return _CONFIG_BYTES + tile * TILE_BYTES


def _emulated_load(tile: int) -> Callable[..., Any]:
    place = _place(tile)

    @v.compiled_for(f"{tile}")
    def load(state, address, stride):
        _clear(state + place)
        for row in range(_rows_of(state, tile)):
            for word in range(_words_of(state, tile)):
                v.store_i32(state + place + row * ROW_BYTES, word, v.load_i32(address + row * stride, word))

    return load


def _emulated_store(tile: int) -> Callable[..., Any]:
    place = _place(tile)

    @v.compiled_for(f"{tile}")
    def store(state, address, stride):
        for row in range(_rows_of(state, tile)):
            for word in range(_words_of(state, tile)):
                v.store_i32(address + row * stride, word, v.load_i32(state + place + row * ROW_BYTES, word))

    return store


@numba.njit
def _clear(address):
    for row in range(ROWS):
        v.store_ints(address + row * ROW_BYTES, 0, v.int_zeros())


def _emulated_zero(tile: int) -> Callable[..., Any]:
    place = _place(tile)

    @v.compiled_for(f"{tile}")
    def zero(state):
        _clear(state + place)

    return zero


def _emulated_dot_bfloat16(sums: int, a: int, b: int) -> Callable[..., Any]:
    at, left, right = _place(sums), _place(a), _place(b)

    @v.compiled_for(f"{sums}.{a}.{b}")
    def dot(state):
        for row in range(_rows_of(state, sums)):
            even, odd = v.zeros(), v.zeros()
            for k in range(_words_of(state, a)):
                pairs, inputs = v.load_ints(state + right + k * ROW_BYTES, 0), state + left + row * ROW_BYTES
                high = v.as_floats(v.and_ints(pairs, v.spread_int(_UPPER)))
                low = v.as_floats(pairs * v.spread_int(_SHIFT))
                even = v.multiply_add(v.spread(v.load_bf16(inputs, 2 * k)), low, even)
                odd = v.multiply_add(v.spread(v.load_bf16(inputs, 2 * k + 1)), high, odd)
            place = state + at + row * ROW_BYTES
            v.store_floats(place, 0, v.load_floats(place, 0) + (even + odd))

    return dot


def _emulated_dot_bytes(sums: int, a: int, b: int) -> Callable[..., Any]:
    at, left, right = _place(sums), _place(a), _place(b)

    @v.compiled_for(f"{sums}.{a}.{b}")
    def dot(state):
        for row in range(_rows_of(state, sums)):
            place = state + at + row * ROW_BYTES
            for column in range(ROWS):
                total = np.int64(v.load_i32(place, column))
                for k in range(_words_of(state, a)):
                    for byte in range(4):
                        weight = np.int64(v.load_u8(state + right + k * ROW_BYTES, 4 * column + byte))
                        weight -= 256 * (weight > 127)
                        total += np.int64(v.load_u8(state + left + row * ROW_BYTES, 4 * k + byte)) * weight
                v.store_i32(place, column, np.int32(total))

    return dot
