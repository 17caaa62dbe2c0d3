"""The supervisor as values (events in, instructions out), then with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from watching import gone, wait_until

from mesh.supervisor import processes
from mesh.supervisor.machine import (
    EXIT_CONFIG,
    EXIT_FENCED,
    Begin,
    Child,
    Ended,
    Exited,
    Fenced,
    GaveUp,
    Instruction,
    Launch,
    Policy,
    Readiness,
    Report,
    RollAsked,
    Send,
    StopAsked,
    Supervisor,
    Tick,
)
from mesh.supervisor.processes import MAX_LINE, LineReader, LogFile, Processes, tied


def child(name: str, after: tuple[str, ...] = (), stage: int = 0) -> Child:
    return Child(name, ("true",), after=after, stage=stage)


def acts(instructions: list[Instruction]) -> list[Instruction]:
    return [instruction for instruction in instructions if not isinstance(instruction, Report)]


# Replacing one by one -----------------------------------------------------------------------------------


def three_running() -> Supervisor:
    supervisor = Supervisor([child("w1"), child("w2"), child("door")], Policy(drain_timeout=30.0))
    supervisor.handle(Begin(), 0.0)
    for name in ("w1", "w2", "door"):
        supervisor.handle(Readiness(name, True), 1.0)
    return supervisor


def test_the_next_is_drained_only_when_the_one_before_is_ready_again() -> None:
    supervisor = three_running()
    assert acts(supervisor.handle(RollAsked(("w1", "w2")), 2.0)) == [Send("w1", signal.SIGTERM)]
    assert acts(supervisor.handle(Readiness("w1", True), 3.0)) == [], "the old one still says so"
    assert acts(supervisor.handle(Exited("w1", 0), 4.0)) == [Launch("w1")]
    assert acts(supervisor.handle(Tick(), 5.0)) == []
    assert acts(supervisor.handle(Readiness("w1", True), 6.0)) == [Send("w2", signal.SIGTERM)]
    assert acts(supervisor.handle(Exited("w2", 0), 7.0)) == [Launch("w2")]
    assert acts(supervisor.handle(Readiness("w2", True), 8.0)) == []
    assert supervisor.state("door") == "running"


def test_nobody_is_drained_while_another_of_them_is_not_ready() -> None:
    supervisor = three_running()
    supervisor.handle(Exited("w2", -9), 2.0)
    assert acts(supervisor.handle(RollAsked(("w1", "w2")), 2.0)) == []
    supervisor.handle(Tick(), 3.0)
    assert acts(supervisor.handle(Readiness("w2", True), 4.0)) == [Send("w1", signal.SIGTERM)]


def test_one_that_does_not_leave_in_time_is_killed_and_started_again() -> None:
    supervisor = three_running()
    supervisor.handle(RollAsked(("w1", "w2")), 2.0)
    assert supervisor.next_wake(2.0) == 30.0
    assert acts(supervisor.handle(Tick(), 31.9)) == []
    assert acts(supervisor.handle(Tick(), 32.0)) == [Send("w1", signal.SIGKILL)]
    assert acts(supervisor.handle(Exited("w1", -9), 32.1)) == [Launch("w1")]


def test_replacing_ends_where_one_does_not_start_again() -> None:
    supervisor = three_running()
    supervisor.handle(RollAsked(("w1", "w2")), 2.0)
    supervisor.handle(Exited("w1", 0), 3.0)
    said = supervisor.handle(Exited("w1", EXIT_CONFIG), 4.0)
    assert acts(said)[:1] == [GaveUp("w1", said[0].reason)]  # type: ignore[union-attr]
    assert supervisor.state("w2") == "running"
    assert Send("w2", signal.SIGTERM) not in supervisor.handle(Tick(), 60.0)


def test_a_stop_goes_before_replacing() -> None:
    supervisor = three_running()
    supervisor.handle(RollAsked(("w1", "w2")), 2.0)
    supervisor.handle(StopAsked(), 3.0)
    supervisor.handle(Exited("w1", 0), 4.0)
    assert supervisor.state("w1") == "stopped"


# Start order --------------------------------------------------------------------------------------------


def test_children_that_wait_for_nobody_start_at_once() -> None:
    supervisor = Supervisor([child("a"), child("b")])
    assert supervisor.handle(Begin(), 0.0) == [Launch("a"), Launch("b")]


def test_a_child_starts_when_those_before_it_are_ready() -> None:
    supervisor = Supervisor([child("a"), child("b"), child("door", after=("a", "b"))])
    assert supervisor.handle(Begin(), 0.0) == [Launch("a"), Launch("b")]
    assert supervisor.handle(Readiness("a", True), 1.0) == []
    assert supervisor.handle(Readiness("b", False), 1.0) == []
    assert supervisor.handle(Readiness("b", True), 2.0) == [Launch("door")]


def test_a_failed_child_holds_nobody_up() -> None:
    supervisor = Supervisor([child("a"), child("door", after=("a",))], Policy(max_crashes=0))
    supervisor.handle(Begin(), 0.0)
    instructions = supervisor.handle(Exited("a", 1, ("no such model",)), 1.0)
    assert instructions[-1] == Launch("door")


def test_waiting_for_an_unknown_child_is_refused() -> None:
    with pytest.raises(ValueError, match="nobody"):
        Supervisor([child("a", after=("nobody",))])


# Restarts -----------------------------------------------------------------------------------------------


def test_a_crashed_child_alone_is_started_again_after_a_delay() -> None:
    supervisor = Supervisor([child("a"), child("b")], Policy(first_delay=0.1))
    supervisor.handle(Begin(), 0.0)
    assert acts(supervisor.handle(Exited("a", -9), 5.0)) == []
    assert supervisor.next_wake(5.0) == pytest.approx(0.1)
    assert supervisor.handle(Tick(), 5.05) == []
    assert supervisor.handle(Tick(), 5.1) == [Launch("a")]


def test_the_delay_grows_with_each_crash_up_to_its_bound_and_is_forgotten_after_calm() -> None:
    supervisor = Supervisor([child("a")], Policy(first_delay=1, growth=2, longest_delay=3, calm=100, max_crashes=99))
    now, delays = 0.0, []
    supervisor.handle(Begin(), now)
    for ran in (1, 1, 1, 1, 100):
        now += ran
        supervisor.handle(Exited("a", 1), now)
        delay = supervisor.next_wake(now)
        assert delay is not None
        delays.append(delay)
        now += delay
        assert supervisor.handle(Tick(), now) == [Launch("a")]
    assert delays == pytest.approx([1, 2, 3, 3, 1])


def test_the_fourth_crash_in_ten_seconds_marks_the_child_failed_with_what_it_said_last() -> None:
    supervisor = Supervisor([child("a")], Policy(first_delay=0.5, growth=1))
    supervisor.handle(Begin(), 0.0)
    now = 0.0
    for _ in range(3):
        now += 1.0
        assert acts(supervisor.handle(Exited("a", 1, ("boom",)), now)) == []
        now += 0.5
        assert supervisor.handle(Tick(), now) == [Launch("a")]
    (gave_up,) = supervisor.handle(Exited("a", 1, ("out of memory",)), now + 1.0)
    assert isinstance(gave_up, GaveUp)
    assert "ended with code 1" in gave_up.reason and "out of memory" in gave_up.reason
    assert supervisor.state("a") == "failed"


def test_a_child_that_was_given_something_wrong_is_failed_at_once() -> None:
    supervisor = Supervisor([child("a")], Policy(retry_failed_after=0))
    supervisor.handle(Begin(), 0.0)
    (gave_up,) = supervisor.handle(Exited("a", EXIT_CONFIG, ("no page fits",)), 1.0)
    assert isinstance(gave_up, GaveUp) and "given is wrong" in gave_up.reason and "no page fits" in gave_up.reason
    assert supervisor.state("a") == "failed" and supervisor.next_wake(1.0) is None


def test_a_failed_child_is_tried_again_after_a_while_unless_that_is_off() -> None:
    supervisor = Supervisor([child("a")], Policy(max_crashes=0, retry_failed_after=10))
    supervisor.handle(Begin(), 0.0)
    supervisor.handle(Exited("a", 1), 1.0)
    assert supervisor.next_wake(1.0) == pytest.approx(10.0)
    assert supervisor.handle(Tick(), 10.9) == []
    assert supervisor.handle(Tick(), 11.0) == [Launch("a")]

    supervisor = Supervisor([child("a")], Policy(max_crashes=0, retry_failed_after=0))
    supervisor.handle(Begin(), 0.0)
    supervisor.handle(Exited("a", 1), 1.0)
    assert supervisor.next_wake(1.0) is None
    assert supervisor.handle(Tick(), 1000.0) == []


def test_four_crashes_over_a_longer_time_are_only_restarts() -> None:
    supervisor = Supervisor([child("a")], Policy(first_delay=0.1, growth=1, calm=1000))
    now = 0.0
    supervisor.handle(Begin(), now)
    for _ in range(20):
        now += 4.0
        assert acts(supervisor.handle(Exited("a", -9), now)) == []
        now += 0.1
        assert supervisor.handle(Tick(), now) == [Launch("a")]


def test_a_fenced_child_is_started_again_at_once_and_it_is_no_crash() -> None:
    supervisor = Supervisor([child("a")], Policy(max_crashes=0))
    supervisor.handle(Begin(), 0.0)
    assert acts(supervisor.handle(Exited("a", EXIT_FENCED), 5.0)) == [Launch("a")]


def test_children_that_fence_each_other_from_the_start_dont_spin() -> None:
    supervisor = Supervisor([child("a")], Policy(max_crashes=0))
    supervisor.handle(Begin(), 0.0)
    assert isinstance(supervisor.handle(Exited("a", EXIT_FENCED), 0.5)[-1], GaveUp)


def test_a_stuck_child_is_killed_once_and_started_again() -> None:
    supervisor = Supervisor([child("a")], Policy(kill_stuck_after=30, first_delay=0.1))
    supervisor.handle(Begin(), 0.0)
    supervisor.handle(Readiness("a", True), 5.0)
    supervisor.handle(Readiness("a", False), 10.0)
    supervisor.handle(Readiness("a", False), 20.0)
    assert supervisor.next_wake(20.0) == pytest.approx(20.0)
    assert acts(supervisor.handle(Tick(), 40.0)) == [Send("a", signal.SIGKILL)]
    assert acts(supervisor.handle(Tick(), 41.0)) == []
    supervisor.handle(Exited("a", -9), 41.0)
    assert supervisor.handle(Tick(), 41.1) == [Launch("a")]


def test_a_fenced_child_is_killed_at_once_and_once_and_started_again() -> None:
    supervisor = Supervisor([child("a")], Policy(kill_stuck_after=0, first_delay=0.1))
    assert acts(supervisor.handle(Fenced("a"), 0.0)) == [Launch("a")], "there is nothing to kill yet"
    supervisor.handle(Readiness("a", True), 5.0)
    assert acts(supervisor.handle(Fenced("a"), 10.0)) == [Send("a", signal.SIGKILL)]
    assert acts(supervisor.handle(Fenced("a"), 10.1)) == []
    supervisor.handle(Exited("a", -9), 10.2)
    assert acts(supervisor.handle(Fenced("a"), 10.2)) == []
    assert supervisor.handle(Tick(), 10.3) == [Launch("a")]
    assert acts(supervisor.handle(Fenced("a"), 20.0)) == [Send("a", signal.SIGKILL)]


def test_a_fenced_child_that_drains_is_left_to_its_stage() -> None:
    supervisor = Supervisor([child("a")], Policy(drain_timeout=10))
    supervisor.handle(Begin(), 0.0)
    supervisor.handle(StopAsked(), 1.0)
    assert supervisor.handle(Fenced("a"), 2.0) == []


def test_a_child_that_comes_back_in_time_and_one_that_never_was_ready_are_left_alone() -> None:
    supervisor = Supervisor([child("a"), child("slow")], Policy(kill_stuck_after=30))
    supervisor.handle(Begin(), 0.0)
    supervisor.handle(Readiness("a", True), 1.0)
    supervisor.handle(Readiness("a", False), 2.0)
    supervisor.handle(Readiness("a", True), 20.0)
    supervisor.handle(Readiness("slow", False), 2.0)
    assert supervisor.handle(Tick(), 500.0) == []


# Stopping -----------------------------------------------------------------------------------------------


def test_stop_drains_the_highest_stage_first() -> None:
    supervisor = Supervisor([child("model"), child("door", stage=1)])
    supervisor.handle(Begin(), 0.0)
    assert supervisor.handle(StopAsked(), 1.0) == [Send("door", signal.SIGTERM)]
    assert supervisor.handle(Exited("door", 0), 2.0) == [Send("model", signal.SIGTERM)]
    assert supervisor.handle(Exited("model", 0), 3.0) == [Ended()]


def test_a_child_that_doesnt_drain_in_time_is_killed() -> None:
    supervisor = Supervisor([child("model"), child("door", stage=1)], Policy(drain_timeout=10))
    supervisor.handle(Begin(), 0.0)
    supervisor.handle(StopAsked(), 1.0)
    assert supervisor.next_wake(1.0) == pytest.approx(10.0)
    assert supervisor.handle(Tick(), 11.0) == [Send("door", signal.SIGKILL)]
    assert supervisor.handle(Exited("door", -9), 11.1) == [Send("model", signal.SIGTERM)]


def test_a_second_stop_kills_everything_at_once() -> None:
    supervisor = Supervisor([child("model"), child("door", stage=1)])
    supervisor.handle(Begin(), 0.0)
    supervisor.handle(StopAsked(), 1.0)
    assert supervisor.handle(StopAsked(), 2.0) == [
        Send("model", signal.SIGKILL),
        Send("door", signal.SIGKILL),
    ]
    assert supervisor.handle(Exited("model", -9), 2.1) == []
    assert supervisor.handle(Exited("door", -9), 2.1) == [Ended()]


def test_nothing_is_started_again_while_stopping() -> None:
    supervisor = Supervisor([child("a"), child("b"), child("late", after=("b",))])
    supervisor.handle(Begin(), 0.0)
    supervisor.handle(Exited("a", 1), 1.0)
    assert supervisor.handle(StopAsked(), 1.01) == [Send("b", signal.SIGTERM)]
    assert supervisor.handle(Tick(), 50.0) == [Send("b", signal.SIGKILL)]
    assert supervisor.handle(Exited("b", -9), 50.0) == [Ended()]


def test_stopping_with_no_child_left_ends() -> None:
    supervisor = Supervisor([child("a")], Policy(max_crashes=0))
    supervisor.handle(Begin(), 0.0)
    supervisor.handle(Exited("a", 1), 1.0)
    assert supervisor.handle(StopAsked(), 2.0) == [Ended()]


# Lines of children --------------------------------------------------------------------------------------


def test_lines_are_cut_at_newlines_and_at_the_bound_and_show_a_progress_bars_last_state() -> None:
    seen: list[str] = []
    reader = LineReader(seen.append)
    reader.feed(b"one\ntw")
    reader.feed(b"o\r\n\n10%\r50%\r\xff\n" + b"x" * (MAX_LINE + 5))
    reader.feed(b"end")
    reader.close()
    assert seen == ["one", "two", "�", "x" * MAX_LINE, "end"]


def test_a_log_that_could_not_be_opened_again_goes_on_with_a_later_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when no descriptor is left at the moment it is put aside. The child must be read all the same."""
    monkeypatch.setattr(processes, "MAX_LOG_BYTES", 8)
    path = tmp_path / "a.log"
    log = LogFile(path)
    with monkeypatch.context() as without_descriptors:
        without_descriptors.setattr(Path, "open", refused)
        with contextlib.suppress(OSError):
            log.write("the first line")
        with pytest.raises(OSError):
            log.write("the second line")
    log.write("more")
    log.close()
    assert path.read_text() == "more\n"
    assert path.with_suffix(".log.1").read_text() == "the first line\n"


def refused(*_: object, **__: object) -> None:
    raise OSError(errno.EMFILE, "no descriptor is left")


# Real processes -----------------------------------------------------------------------------------------


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-u", "-c", textwrap.dedent(code))


class Watched:
    """A Processes under test: what its children said, and a way to wait for a line."""

    def __init__(self, *children: Child, policy: Policy | None = None, log_dir: Path | None = None) -> None:
        self.lines: list[tuple[str, str]] = []
        self.gave_up: list[tuple[str, str]] = []
        self._changed = asyncio.Event()
        self.processes = Processes(
            Supervisor(children, policy), log_dir=log_dir, on_line=self._line, on_gave_up=self._gave_up
        )

    def _line(self, name: str, line: str) -> None:
        self.lines.append((name, line))
        self._changed.set()

    def _gave_up(self, name: str, reason: str) -> None:
        self.gave_up.append((name, reason))
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def count(self, name: str, line: str) -> int:
        return self.lines.count((name, line))


LOYAL = """
    import signal, sys
    print("up")
    signal.sigwait({signal.SIGTERM})
    print("drained")
"""
# sigwait needs the signal blocked before the line that says so.
LOYAL = LOYAL.replace('print("up")', 'signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); print("up")')


async def test_a_killed_child_comes_back_and_stop_drains_it(tmp_path: Path) -> None:
    watched = Watched(Child("a", python(LOYAL)), log_dir=tmp_path)
    running = asyncio.create_task(watched.processes.run())
    await watched.until(lambda: watched.count("a", "up") == 1)
    first = watched.processes.pid("a")
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await watched.until(lambda: watched.count("a", "up") == 2)
    second = watched.processes.pid("a")
    assert second is not None and second != first
    watched.processes.stop()
    await asyncio.wait_for(running, 10)
    assert gone(second)
    assert watched.count("a", "drained") == 1
    assert (tmp_path / "a.log").read_text().count("up\n") == 2


async def test_a_child_that_crashes_on_start_is_failed_with_its_last_lines() -> None:
    policy = Policy(first_delay=0.01)
    watched = Watched(Child("bad", python("raise SystemExit('no weights here')")), policy=policy)
    running = asyncio.create_task(watched.processes.run())
    await watched.until(lambda: bool(watched.gave_up))
    ((name, reason),) = watched.gave_up
    assert name == "bad" and "no weights here" in reason
    watched.processes.stop()
    await asyncio.wait_for(running, 10)


async def test_a_command_that_doesnt_exist_is_failed_with_its_name() -> None:
    watched = Watched(Child("bad", ("/no/such/command",)), policy=Policy(first_delay=0.01))
    running = asyncio.create_task(watched.processes.run())
    await watched.until(lambda: bool(watched.gave_up))
    assert "/no/such/command" in watched.gave_up[0][1]
    watched.processes.stop()
    await asyncio.wait_for(running, 10)


async def test_a_child_that_ignores_sigterm_is_killed_and_cancelling_run_leaves_nothing() -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up')\n"
    deaf += "while True: signal.pause()"
    watched = Watched(Child("deaf", python(deaf)), policy=Policy(drain_timeout=0.1))
    running = asyncio.create_task(watched.processes.run())
    await watched.until(lambda: watched.count("deaf", "up") == 1)
    watched.processes.stop()
    await asyncio.wait_for(running, 10)

    watched = Watched(Child("deaf", python(deaf)))
    running = asyncio.create_task(watched.processes.run())
    await watched.until(lambda: watched.count("deaf", "up") == 1)
    pid = watched.processes.pid("deaf")
    assert pid is not None
    running.cancel()
    await asyncio.wait([running], timeout=10)
    assert gone(pid)


async def test_a_stopped_child_still_drains() -> None:
    watched = Watched(Child("a", python(LOYAL)))
    running = asyncio.create_task(watched.processes.run())
    await watched.until(lambda: watched.count("a", "up") == 1)
    pid = watched.processes.pid("a")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    watched.processes.stop()
    await asyncio.wait_for(running, 10)
    assert watched.count("a", "drained") == 1


SUPERVISOR = """
    import asyncio, sys
    from mesh.supervisor.processes import Processes
    from mesh.supervisor import Child, Supervisor
    deaf = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
    deaf += "print(os.getpid(), flush=True)\\n"
    deaf += "while True: signal.pause()"
    children = [Child(name, (sys.executable, "-S", "-c", deaf)) for name in ("a", "b")]
    processes = Processes(Supervisor(children), on_line=lambda name, line: print(line, flush=True))
    asyncio.run(processes.run())
"""


def test_children_die_within_two_seconds_of_a_supervisor_killed_with_9() -> None:
    root = Path(__file__).parents[2]
    supervisor = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SUPERVISOR)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    try:
        assert supervisor.stdout is not None
        pids = [int(supervisor.stdout.readline()) for _ in range(2)]
        assert not any(gone(pid) for pid in pids)
    finally:
        supervisor.kill()
    supervisor.wait()
    assert wait_until(lambda: all(gone(pid) for pid in pids), 2.0)


def test_a_child_whose_parent_is_gone_before_it_could_be_tied_ends_itself() -> None:
    command = tied(("echo", "alive"))
    command[5] = "1"  # a parent that isn't ours
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
