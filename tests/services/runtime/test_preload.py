"""A warm parent from outside: who is forked, when it ends, and with which code. Real processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.running_mesh import descendants, parent_of
from mesh.supervisor import EXIT_CONFIG

ROOT = Path(__file__).parents[3]
WORKER = Path(__file__).with_name("warm_worker.py")
LONG = 20.0  # s: more than anything here takes


class Parent:
    def __init__(self, order: str, within: tuple[str, ...] = ()) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [*within, sys.executable, str(WORKER), order]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def line(self, begin: str) -> list[str]:
        """The words of the next line that begins so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(begin):
                return line.split()
        raise AssertionError(f"ended before it said {begin!r}")

    def worker(self) -> tuple[int, int]:
        """The process id of the next worker, and how often something was loaded before."""
        _, pid, _, loaded = self.line("worker")
        self.line("waits")
        return int(pid), int(loaded)

    def rest(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.read().splitlines()

    def code(self) -> int:
        return self.process.wait(LONG)

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Parent]]:
    started: list[Parent] = []

    def start(order: str, within: tuple[str, ...] = ()) -> Parent:
        started.append(Parent(order, within))
        return started[-1]

    yield start
    for parent in started:
        parent.end()


def test_a_killed_worker_is_followed_by_one_that_has_what_was_loaded(start: Callable[..., Parent]) -> None:
    parent = start("wait")
    first, loaded = parent.worker()
    assert first != parent.process.pid and loaded == 0
    for _ in range(2):
        os.kill(first, signal.SIGKILL)
        second, loaded = parent.worker()
        assert second != first and loaded == 1
        first = second
    assert parent.process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_who_asks_the_parent_to_end_asks_the_worker_once_and_gets_its_code(
    start: Callable[..., Parent], number: signal.Signals, with_terminal: None
) -> None:
    parent = start("wait")
    parent.worker()
    # To all of its group, as Ctrl-C does.
    os.killpg(parent.process.pid, number)
    assert parent.line("asked") == ["asked", number.name]
    # What comes after it says that it has been passed on by now.
    os.kill(parent.process.pid, signal.SIGUSR1)
    assert parent.code() == 7
    assert parent.rest() == []


def test_a_stopped_worker_hears_that_it_shall_end(start: Callable[..., Parent]) -> None:
    parent = start("wait")
    pid, _ = parent.worker()
    os.kill(pid, signal.SIGSTOP)
    parent.process.terminate()
    assert parent.line("asked") == ["asked", "SIGTERM"]
    os.kill(parent.process.pid, signal.SIGUSR1)
    assert parent.code() == 7


def test_a_worker_does_not_outlive_its_parent(start: Callable[..., Parent]) -> None:
    parent = start("wait")
    parent.worker()
    parent.process.kill()
    # The pipe is closed when nobody is left who could write.
    assert parent.rest() == []


@pytest.mark.parametrize("code", [0, EXIT_CONFIG])
def test_a_worker_that_ends_by_itself_or_has_been_given_what_is_wrong_ends_all(
    start: Callable[..., Parent], code: int
) -> None:
    parent = start(f"exit {code}")
    assert parent.code() == code
    assert sum(line.startswith("worker") for line in parent.rest()) == 1


@pytest.mark.parametrize("order, code", [("die", 128 + 9), ("exit 3", 3)])
def test_one_that_ends_again_and_again_is_given_up(start: Callable[..., Parent], order: str, code: int) -> None:
    parent = start(order)
    assert parent.code() == code
    lines = parent.rest()
    assert sum(line.startswith("worker") for line in lines) == 4
    assert any(line.startswith("giving up") for line in lines)


def test_as_first_process_of_a_container_it_forks_and_ends_as_anywhere(start: Callable[..., Parent]) -> None:
    within = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if shutil.which("unshare") is None or subprocess.run([*within, "true"], capture_output=True).returncode:
        pytest.skip("processes can't be given numbers of their own here")
    parent = start("wait", within)
    parent.worker()
    inside = descendants(parent.process.pid)
    [worker] = [pid for pid in inside if parent_of(pid) in inside]
    first = parent_of(worker)
    os.kill(worker, signal.SIGKILL)
    _, pid, its_parent, _ = parent.line("worker")
    assert its_parent == "1" and int(pid) > 2
    parent.line("waits")
    os.kill(first, signal.SIGTERM)
    assert parent.line("asked") == ["asked", "SIGTERM"]
    os.kill(first, signal.SIGUSR1)
    assert parent.code() == 7
