"""A step of a network as one native call: a list of compiled ops that a few threads walk together.

An op is a compiled function and its fixed words (addresses, sizes). Its work in a step is cut into chunks; a
thread claims the next one, and nobody begins an op before all chunks of the one before are done. Nothing waits
for a *thread*, only for work: one that another process has pushed off its core costs the chunk it holds, and
when it comes back it finds out where the others are.

    ticket of an op:  run (24 bits) | chunks (20) | next chunk (20)

One word says it all, so that a thread which slept through the end of a run can't claim a chunk of the next one
with the numbers of the last: it would have to sleep through 16 million runs exactly. Threads wait by spinning for
a moment, then by giving their core away (between ops) or by sleeping (between runs). Knows nothing of networks;
torch and Python are not entered during a run.

After a fork the child has no threads but its own, which then does all the work. A process that ends lets its
threads end first: compiled code is freed behind them.
"""

from __future__ import annotations

import atexit
import platform
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from kernels.cpu_cache import kept_on_disk

# Words of a step, which every op is given the address of: what changes from one forward to the next.
ROWS, TOKENS, POSITIONS, SLOTS, TABLES, TABLE_WIDTH, TILES, TILE_COUNT, WANTED, WANTED_COUNT = range(10)
# Of blocks (0: there are none): a row sees places 0 .. SEEN - 1 [R] int32 of its sequence.
SEEN = 10
# Of branches with pages of their own: pairs of pages (from, to) [FORK_COUNT, 2] int32, copied before anything is
# stored, and rows [ALSO_COUNT] int32 that are also stored in a second slot [ALSO_COUNT] int64.
FORKS, FORK_COUNT, ALSO_ROWS, ALSO_SLOTS, ALSO_COUNT = range(11, 16)
# For taps: where the features of each row go, [R] int32.
FEATURE_ROWS = 16
# Of delta nets: what of each sequence is run, [STATE_COUNT, columns] int32 (kernels/delta_rule/table.py).
STATES, STATE_COUNT = 17, 18
# How many of the wanted rows have logits: the first ones.
LOGITS_COUNT = 19
STEP_WORDS = 32

_RUN_TYPE = types.void(types.int64, types.int64, types.int64, types.int64)
_CHUNKS_TYPE = types.int64(types.int64, types.int64)
_NEXT_BITS, _CHUNK_BITS, _RUN_BITS = 20, 20, 24
_MASK, _RUN_MASK = (1 << 20) - 1, (1 << _RUN_BITS) - 1
# Words of an op, in lines of 64 bytes: what is only read, then each word that is fought over.
_RUN, _CHUNKS, _ARGS, _TICKET, _DONE, _OP_WORDS = 0, 1, 2, 8, 16, 24
# Words of the whole program. A run is of the ops from _FIRST up to _END.
_GO, _FIRST, _END, _STOP, _SLEEPERS, _CONTROL_WORDS = 0, 1, 2, 8, 16, 24
# Looks at a word before a thread gives its core away; about 20 µs, and 100 µs between runs.
_SPINS, _SPINS_BETWEEN_RUNS = 1000, 5000
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0) if sys.platform == "linux" else 0
_FUTEX_WAIT, _FUTEX_WAKE = 128, 129  # private to this process


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function compiled at its first call and kept on disk where that is possible (kernels/cpu_cache.py)."""
    with kept_on_disk(function) as cache:
        return numba.njit(nogil=True, cache=cache, error_model="numpy")(function)


# Decorates a function that plain Python calls as it is, and compiled functions as compiled code.
shared = register_jitable(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


class Native:
    """A function compiled for calls by address, at the first use of it, and kept on disk.

    Its sums stay as they are written: licence to reorder them would reach everything it calls. It must not raise:
    whoever calls it by address goes on as if nothing was.
    """

    def __init__(self, function: Callable[..., Any], signature: Any) -> None:
        self.function, self._signature, self._kept = function, signature, kept_on_disk(function)
        self._compiled: Any = None
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    @property
    def compiled(self) -> Any:
        if self._compiled is None:
            with self._kept as cache:
                self._compiled = numba.cfunc(self._signature, cache=cache, error_model="numpy")(self.function)
        return self._compiled

    @property
    def address(self) -> int:
        return int(self.compiled.address)

    def __call__(self, *arguments: int) -> Any:
        """From Python: for tests."""
        return self.compiled.ctypes(*arguments)


def op(function: Callable[[int, int, int, int], None]) -> Native:
    """An op's work: (address of its words, address of the step's words, chunk, thread)."""
    return Native(function, _RUN_TYPE)


def op_chunks(function: Callable[[int, int], int]) -> Native:
    """How many chunks an op has in this step: (address of its words, address of the step's words)."""
    return Native(function, _CHUNKS_TYPE)


@dataclass(frozen=True, slots=True)
class Op:
    """`words` are what `run` and `chunks` read at their first argument; `keeps` holds the memory behind them."""

    run: Native
    chunks: Native
    words: Sequence[int]
    keeps: tuple[Any, ...] = ()


def aligned(count: int, dtype: Any, alignment: int = 64) -> np.ndarray:
    """Zeros that begin at a multiple of `alignment` bytes."""
    size = count * np.dtype(dtype).itemsize
    raw = np.zeros(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size].view(dtype)


def _address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


class Program:
    """Ops in order, and the threads that run them; the calling thread is one of them."""

    def __init__(self, ops: Sequence[Op], threads: int) -> None:
        self.ops = list(ops)
        self.step = aligned(STEP_WORDS, np.int64)
        self._control = aligned(_CONTROL_WORDS, np.int64)
        self._words = [np.asarray(one.words, np.int64) for one in ops]
        self._table = aligned(len(ops) * _OP_WORDS, np.int64)
        for row, one, words in zip(self._table.reshape(-1, _OP_WORDS), ops, self._words, strict=True):
            row[_RUN], row[_CHUNKS], row[_ARGS] = one.run.address, one.chunks.address, _address(words)
        self._runs = 0
        self._places = (_address(self._control), _address(self._table), _address(self.step))
        # What threads look at while they wait lives as long as they do, and they end with the program.
        kept = (self._control, self._table, self._words, self.step)
        self._threads = [
            threading.Thread(target=_live, args=(kept, *self._places, index), name=f"compute-{index}", daemon=True)
            for index in range(1, threads)
        ]
        for thread in self._threads:
            thread.start()
        _started.update(self._threads)
        _programs.add(self)
        self._end = weakref.finalize(self, _stop_threads, self._control)

    def run(self, first: int = 0, end: int | None = None) -> None:
        """All ops, or some neighbours, with the step's words as they are now."""
        # 0 marks a thread that has seen no run.
        self._runs = self._runs % _RUN_MASK + 1
        refused = run_program(*self._places, first, len(self.ops) if end is None else end, self._runs)
        if refused >= 0:
            name = self.ops[refused].run.__name__
            raise ValueError(f"op {refused} ({name}) has no number of chunks between 0 and {_MASK}")

    def close(self) -> None:
        self._end()
        for thread in self._threads:
            thread.join()
        self._threads = []


def _live(kept: Any, *places: int) -> None:
    work(*places)


def _stop_threads(control: np.ndarray) -> None:
    stop(_address(control))


_programs: weakref.WeakSet[Program] = weakref.WeakSet()
_started: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for program in list(_programs):
        program._end()
    for thread in list(_started):
        # A run that goes on is somebody else's thread; it isn't worth more of a wait.
        thread.join(5)


# Native parts -------------------------------------------------------------------------------------------


def _at(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, ir.IntType(64).as_pointer())


@intrinsic
def _read(_: Any, address: Any) -> Any:
    """The word at an address, and everything written before it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_at(builder, arguments[0]), "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def _write(_: Any, address: Any, value: Any) -> Any:
    """Set the word at an address, after everything written before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[1], _at(builder, arguments[0]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _add(_: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.atomic_rmw("add", _at(builder, arguments[0]), arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _swap(_: Any, address: Any, expected: Any, value: Any) -> Any:
    """Set the word to `value` if it is `expected`; whether it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pair = builder.cmpxchg(_at(builder, arguments[0]), arguments[1], arguments[2], "seq_cst", "acquire")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


def _calls(result: Any, count: int) -> Any:
    """What makes a call by address, of a function of `count` int64."""
    word = ir.IntType(64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shape = ir.FunctionType(word if result is types.int64 else ir.VoidType(), [word] * count)
        value = builder.call(builder.inttoptr(arguments[0], shape.as_pointer()), arguments[1:])
        return value if result is types.int64 else context.get_dummy_value()

    return result(*[types.int64] * (count + 1)), generate


@intrinsic
def _call_run(_: Any, address: Any, args: Any, step: Any, chunk: Any, thread: Any) -> Any:
    return _calls(types.void, 4)


@intrinsic
def _call_chunks(_: Any, address: Any, args: Any, step: Any) -> Any:
    return _calls(types.int64, 2)


def _external(name: str, result: Any, count: int) -> Any:
    """What calls a function of the C library or of LLVM with `count` int64."""
    word = ir.IntType(64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shape = ir.FunctionType(word if result is types.int64 else ir.VoidType(), [word] * count)
        value = builder.call(cgutils.get_or_insert_function(builder.module, shape, name), arguments)
        return value if result is types.int64 else context.get_dummy_value()

    return result(*[types.int64] * count), generate


@intrinsic
def _pause(_: Any) -> Any:
    name = "llvm.x86.sse2.pause" if platform.machine() == "x86_64" else "sched_yield"
    return _external(name, types.void, 0)


@intrinsic
def _give_core_away(_: Any) -> Any:
    return _external("sched_yield", types.void, 0)


@intrinsic
def _system_call(_: Any, number: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return _external("syscall", types.int64, 5)


@numba.njit(inline="always")
def _op(table: int, index: int, word: int) -> int:
    return table + (index * _OP_WORDS + word) * 8


@compiled
def _sleep_while(address, seen):
    """Until the word is another than `seen`; the kernel looks at its low half."""
    if _FUTEX == 0:
        _give_core_away()
    else:
        _system_call(_FUTEX, address, _FUTEX_WAIT, seen & 0xFFFFFFFF, 0)


@compiled
def _walk(table, first, end, step, run, thread):
    """This thread's share of a run. Returns when the run is over."""
    for index in range(first, end):
        ticket_at, done_at = _op(table, index, _TICKET), _op(table, index, _DONE)
        while True:
            ticket = _read(ticket_at)
            if (ticket >> 40) & _RUN_MASK != run:
                return
            chunks, chunk = (ticket >> _NEXT_BITS) & _MASK, ticket & _MASK
            if chunk >= chunks:
                break
            if _swap(ticket_at, ticket, ticket + 1):
                _call_run(_read(_op(table, index, _RUN)), _read(_op(table, index, _ARGS)), step, chunk, thread)
                _add(done_at, 1)
        looks = 0
        while _read(done_at) < chunks:
            # Over: what is counted now belongs to the next run.
            if (_read(ticket_at) >> 40) & _RUN_MASK != run:
                return
            looks += 1
            if looks < _SPINS:
                _pause()
            else:
                _give_core_away()


@compiled
def run_program(control, table, step, first, end, run):
    """-1, or the first op with a number of chunks that a ticket has no room for: then nothing was run."""
    for index in range(first, end):
        chunks = _call_chunks(_read(_op(table, index, _CHUNKS)), _read(_op(table, index, _ARGS)), step)
        if chunks < 0 or chunks > _MASK:
            return index
        _write(_op(table, index, _DONE), 0)
        _write(_op(table, index, _TICKET), (run << 40) | (chunks << _NEXT_BITS))
    _write(control + _FIRST * 8, first)
    _write(control + _END * 8, end)
    _write(control + _GO * 8, run)
    # Adding nothing is more than reading: it can't come before the line above. One that lies down now sees the run.
    if _FUTEX != 0 and _add(control + _SLEEPERS * 8, 0) > 0:
        _system_call(_FUTEX, control + _GO * 8, _FUTEX_WAKE, 1 << 30, 0)
    _walk(table, first, end, step, run, 0)
    return -1


@compiled
def work(control, table, step, thread):
    """A thread's life: runs as they come."""
    seen = 0
    while True:
        looks = 0
        while _read(control + _GO * 8) == seen:
            looks += 1
            if looks < _SPINS_BETWEEN_RUNS:
                _pause()
            else:
                _add(control + _SLEEPERS * 8, 1)
                _sleep_while(control + _GO * 8, seen)
                _add(control + _SLEEPERS * 8, -1)
        if _read(control + _STOP * 8) != 0:
            return
        seen = _read(control + _GO * 8)
        # Of a later run perhaps, whose tickets have another number than `seen`.
        first, end = _read(control + _FIRST * 8), _read(control + _END * 8)
        _walk(table, first, end, step, seen, thread)


@compiled
def stop(control):
    _write(control + _STOP * 8, 1)
    # No run has this number.
    _write(control + _GO * 8, -1)
    if _FUTEX != 0:
        _system_call(_FUTEX, control + _GO * 8, _FUTEX_WAKE, 1 << 30, 0)


