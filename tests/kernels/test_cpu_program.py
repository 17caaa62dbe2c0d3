"""A program of ops: every chunk once, every op after the one before, whatever the threads do."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import numba
import numpy as np
import pytest

from kernels.cpu_program import _SLEEPERS, ROWS, Native, Op, Program, _add, _read, _write, op, op_chunks


@op
def count_up(args, step, chunk, thread):
    # args: one counter a chunk, then the counters of the op before (address), which must be done.
    before = _read(args)
    expected = _read(args + 8)
    for i in range(expected):
        if _read(before + (2 + i) * 8) != _read(step + 8 * 20):
            _add(args + 16 + 63 * 8, 1)
    _add(args + 16 + chunk * 8, 1)


@op_chunks
def as_many_as_rows(args, step):
    return _read(step + ROWS * 8)


@op
def slow(args, step, chunk, thread):
    total = 0.0
    for i in range(200_000):
        total += np.sqrt(float(i ^ chunk))
    if total < 0.0:
        _write(args, 1)
    _add(args + 8, 1)


@op
def note_thread(args, step, chunk, thread):
    _add(args + 8 * thread, 1)


@op_chunks
def hundred(args, step):
    return 100


def chain(length: int) -> tuple[list[Op], list[np.ndarray]]:
    memory = [np.zeros(66, np.int64) for _ in range(length)]
    return [Op(count_up, as_many_as_rows, _Words(words)) for words in memory], memory


class _Words(list):
    """The words themselves, so that a test can look at what ops wrote."""

    def __init__(self, array: np.ndarray) -> None:
        super().__init__(array.tolist())
        self.array = array

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.array


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_chunk_runs_once_and_after_the_op_before(threads: int) -> None:
    ops, memory = chain(40)
    for first, second in pairwise(memory):
        second[0] = first.ctypes.data
    program = Program(ops, threads)
    turns = 150
    counted = np.zeros(60, np.int64)
    for turn in range(1, turns + 1):
        rows = 1 + turn * 7 % 60
        program.step[ROWS] = rows
        counted[:rows] += 1
        # The op before has counted its first chunk in every run so far.
        program.step[20] = turn
        for words in memory[1:]:
            words[1] = 1
        program.run()
    program.close()
    for words in memory:
        assert (words[2:62] == counted).all()
        assert words[65] == 0, "an op began before the one before was done"


@pytest.mark.parametrize("threads", [1, 3])
def test_a_run_may_be_of_some_ops(threads: int) -> None:
    ops, memory = chain(6)
    program = Program(ops, threads)
    for rows in (3, 5, 2):
        program.step[ROWS] = rows
        program.run(0, 2)
        program.run(2, 2)
        program.run(3)
        program.run(3, 5)
    program.close()
    assert [int(words[2:62].sum()) for words in memory] == [10, 10, 0, 20, 20, 10]


def test_an_op_without_chunks_is_passed_over() -> None:
    ops, memory = chain(3)
    program = Program(ops, 2)
    program.step[ROWS] = 0
    program.run()
    program.step[ROWS] = 2
    program.run()
    program.close()
    assert all(words[2:4].tolist() == [1, 1] and not words[4:].any() for words in memory)


def test_threads_share_the_chunks() -> None:
    words, shared = np.zeros(4, np.int64), np.zeros(8, np.int64)
    program = Program([Op(slow, hundred, _Words(words)), Op(note_thread, hundred, _Words(shared))], 2)
    for _ in range(20):
        program.run()
    program.close()
    assert words[1] == 2000 and shared.sum() == 2000


def test_more_threads_than_cores_and_a_busy_machine_lose_nothing() -> None:
    busy = threading.Event()

    @numba.njit(nogil=True)
    def burn() -> float:
        total = 0.0
        for i in range(3_000_000):
            total += np.sqrt(float(i))
        return total

    def keep_busy() -> None:
        while not busy.is_set():
            burn()

    others = [threading.Thread(target=keep_busy, daemon=True) for _ in range(3)]
    for other in others:
        other.start()
    ops, memory = chain(20)
    program = Program(ops, 6)
    program.step[ROWS] = 50
    for turn in range(1, 31):
        program.step[20] = turn
        program.run()
    program.close()
    busy.set()
    for other in others:
        other.join()
    assert all((words[2:52] == 30).all() for words in memory)


def test_a_closed_program_leaves_no_thread() -> None:
    before = threading.active_count()
    ops, _ = chain(2)
    program = Program(ops, 4)
    assert threading.active_count() == before + 3
    program.close()
    assert threading.active_count() == before


def test_a_program_that_nobody_holds_ends_its_threads() -> None:
    before = set(threading.enumerate())
    ops, _ = chain(2)
    program = Program(ops, 3)
    program.step[ROWS] = 2
    program.run()
    started = set(threading.enumerate()) - before
    del program
    gc.collect()
    for thread in started:
        thread.join(10)
    assert len(started) == 2 and not any(thread.is_alive() for thread in started)


@pytest.mark.parametrize("runs", [(1 << 23) - 3, (1 << 24) - 4])
def test_a_program_that_ran_for_days_still_runs(runs: int) -> None:
    """Its number reaches the highest bit of a ticket, and begins anew."""
    ops, memory = chain(5)
    program = Program(ops, 3)
    program._runs = runs
    program.step[ROWS] = 7
    for turn in range(1, 8):
        program.step[20] = turn
        program.run()
        assert all((words[2:9] == turn).all() for words in memory)
    program.close()


@op_chunks
def a_million(args, step):
    return 1 << 20


@op_chunks
def fewer_than_none(args, step):
    return -1


@op_chunks
def most_there_can_be(args, step):
    return (1 << 20) - 1


@pytest.mark.parametrize("chunks", [a_million, fewer_than_none], ids=["too many", "negative"])
def test_chunks_that_a_ticket_has_no_room_for_are_refused_before_anything_runs(chunks: Native) -> None:
    ops, memory = chain(2)
    words = np.zeros(8, np.int64)
    program = Program([*ops, Op(note_thread, chunks, _Words(words))], 2)
    program.step[ROWS] = 3
    for _ in range(2):
        with pytest.raises(ValueError, match=r"op 2 \(note_thread\)"):
            program.run()
    program.close()
    assert not words.any() and not any(one[2:].any() for one in memory)


def test_as_many_chunks_as_a_ticket_has_room_for_all_run() -> None:
    words = np.zeros(8, np.int64)
    program = Program([Op(note_thread, most_there_can_be, _Words(words))], 2)
    program.run()
    program.close()
    assert words.sum() == (1 << 20) - 1


def test_threads_wake_up_after_they_slept() -> None:
    ops, memory = chain(3)
    program = Program(ops, 4)
    program.step[ROWS] = 5
    for turn in range(1, 6):
        while program._control[_SLEEPERS] < 3:
            os.sched_yield()
        program.step[20] = turn
        program.run()
    program.close()
    assert all((words[2:7] == 5).all() for words in memory)


def test_after_a_fork_the_child_does_all_the_work() -> None:
    ops, memory = chain(3)
    program = Program(ops, 3)
    program.step[ROWS] = 5
    program.run()
    child = os.fork()
    if child == 0:
        program.run()
        program.close()
        os._exit(0 if all((words[2:7] == 2).all() for words in memory) else 1)
    assert os.waitpid(child, 0)[1] == 0
    program.run()
    program.close()
    assert all((words[2:7] == 2).all() for words in memory)


# Each time in a fork of its own that ends as a process does; nothing before it has started a thread.
_EXITS = """
import os, signal, threading
# By the name that it has here: loops kept on disk name their module.
from tests.kernels.test_cpu_program import ROWS, Program, chain

def ran():
    ops, memory = chain(3)
    programs = [Program(ops, 3) for _ in range(3)]
    for program in programs:
        program.step[ROWS] = 5
        program.run()
    del programs[0]
    return programs

children = []
for last in {lasts!r} * 3:
    child = os.fork()
    if child == 0:
        signal.alarm(50)  # one that hangs ends, too
        programs = ran()
        exec(last)
        break
    children.append(os.waitpid(child, 0)[1])
else:
    print(children)
"""
LASTS = ["pass", "raise SystemExit(0)", "threading.Thread(target=programs[0].run).start()"]


def test_a_process_ends_quietly_with_programs_open() -> None:
    code, root = _EXITS.format(lasts=LASTS), Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{[0] * 9}\n", "")
