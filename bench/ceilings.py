"""What this machine can do at best: bytes read and multiply-adds a second, with as many threads as are asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu_vectors import HAS_BFLOAT16_DOT, HAS_BYTE_DOT, I64, V_F32, V_I32, dot_bfloat16_pairs, dot_byte_quads

_ACCUMULATORS = 20
_READ_BYTES = 1 << 29


def read_gb_s(threads: int) -> float:
    """Best of a few turns over memory that no cache holds."""
    data = np.ones(_READ_BYTES // 8, np.int64)
    parts = np.array_split(data, threads)
    _sum(data[:8])
    return max(_READ_BYTES / _together([(_sum, part) for part in parts]) for _ in range(4)) / 1e9


def gmac_s(kind: str, threads: int) -> float:
    """bfloat16 or int8 multiply-adds a second from registers; 0.0 where the CPU has no instruction for them."""
    there, _, lanes = _INSTRUCTIONS[kind]
    if not there:
        return 0.0
    run, turns = _peak_of(kind), 2_000_000
    run(1)
    work = turns * _ACCUMULATORS * lanes * threads
    return max(work / _together([(run, turns)] * threads) for _ in range(3)) / 1e9


# Whether the CPU has the instruction, what emits it, multiply-adds of one.
_INSTRUCTIONS = {
    "bfloat16": (HAS_BFLOAT16_DOT, dot_bfloat16_pairs, 32),
    "int8": (HAS_BYTE_DOT, partial(dot_byte_quads, native=True), 64),
}


def _peak_of(kind: str) -> Callable[[int], Any]:
    """A loop of independent multiply-adds on registers."""

    @intrinsic
    def multiply(_: Any, turns: Any) -> Any:
        return types.int64(types.int64), lambda c, builder, s, arguments: _emit(builder, kind, arguments[0])

    @numba.njit(nogil=True)
    def run(turns: int) -> int:
        return multiply(turns)

    return run  # type: ignore[no-any-return]


def _emit(builder: Any, kind: str, turns: Any) -> Any:
    sums = V_F32 if kind == "bfloat16" else V_I32
    places = [builder.alloca(sums) for _ in range(_ACCUMULATORS)]
    for place in places:
        builder.store(ir.Constant(sums, None), place)
    x = ir.Constant(V_I32, [0] * 16)
    with cgutils.for_range(builder, turns):
        for place in places:
            builder.store(_INSTRUCTIONS[kind][1](builder, builder.load(place), x, x), place)
    # What nobody reads isn't computed.
    total: Any = I64(0)
    for place in places:
        first = builder.extract_element(builder.bitcast(builder.load(place), V_I32), ir.IntType(32)(0))
        total = builder.add(total, builder.zext(first, I64))
    return total


@numba.njit(nogil=True)
def _sum(data: np.ndarray) -> int:
    total = np.int64(0)
    for i in range(data.size):
        total ^= data[i]
    return total


def _together(calls: list[tuple[Callable[[Any], Any], Any]]) -> float:
    threads = [threading.Thread(target=call, args=(argument,)) for call, argument in calls]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start
