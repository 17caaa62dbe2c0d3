"""Children of one machine: their lines, their logs, and real ones that are killed, drained and replaced."""

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

from mesh.supervisor.crashes import Policy
from services.runtime import children
from services.runtime.children import MAX_LINE, Child, Children, LineReader, LogFile, roles_of, tied

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
    monkeypatch.setattr(children, "MAX_LOG_BYTES", 8)
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
    """A Children under test: what its children said, and a way to wait for a line."""

    def __init__(self, *children: Child, policy: Policy | None = None, log_dir: Path | None = None) -> None:
        self.lines: list[tuple[str, str]] = []
        self.gave_up: list[tuple[str, str]] = []
        self._changed = asyncio.Event()
        self.runner = Children(children, policy, log_dir=log_dir, on_line=self._line, on_gave_up=self._gave_up)

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
    running = asyncio.create_task(watched.runner.run())
    await watched.until(lambda: watched.count("a", "up") == 1)
    first = watched.runner.pid("a")
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await watched.until(lambda: watched.count("a", "up") == 2)
    second = watched.runner.pid("a")
    assert second is not None and second != first
    watched.runner.stop()
    await asyncio.wait_for(running, 10)
    assert gone(second)
    assert watched.count("a", "drained") == 1
    assert (tmp_path / "a.log").read_text().count("up\n") == 2


async def test_a_child_that_crashes_on_start_is_failed_with_its_last_lines() -> None:
    policy = Policy(first_delay=0.01)
    watched = Watched(Child("bad", python("raise SystemExit('no weights here')")), policy=policy)
    running = asyncio.create_task(watched.runner.run())
    await watched.until(lambda: bool(watched.gave_up))
    ((name, reason),) = watched.gave_up
    assert name == "bad" and "no weights here" in reason
    watched.runner.stop()
    await asyncio.wait_for(running, 10)


async def test_a_command_that_doesnt_exist_is_failed_with_its_name() -> None:
    watched = Watched(Child("bad", ("/no/such/command",)), policy=Policy(first_delay=0.01))
    running = asyncio.create_task(watched.runner.run())
    await watched.until(lambda: bool(watched.gave_up))
    assert "/no/such/command" in watched.gave_up[0][1]
    watched.runner.stop()
    await asyncio.wait_for(running, 10)


async def test_a_child_that_ignores_sigterm_is_killed_and_cancelling_run_leaves_nothing() -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up')\n"
    deaf += "while True: signal.pause()"
    watched = Watched(Child("deaf", python(deaf)), policy=Policy(drain_timeout=0.1))
    running = asyncio.create_task(watched.runner.run())
    await watched.until(lambda: watched.count("deaf", "up") == 1)
    watched.runner.stop()
    await asyncio.wait_for(running, 10)

    watched = Watched(Child("deaf", python(deaf)))
    running = asyncio.create_task(watched.runner.run())
    await watched.until(lambda: watched.count("deaf", "up") == 1)
    pid = watched.runner.pid("deaf")
    assert pid is not None
    running.cancel()
    await asyncio.wait([running], timeout=10)
    assert gone(pid)


async def test_children_of_a_role_are_replaced_one_after_the_other() -> None:
    watched = Watched(*(Child(name, python(LOYAL), role="w") for name in ("a", "b")))
    running = asyncio.create_task(watched.runner.run())
    names = ["a", "b"]
    await watched.until(lambda: all(watched.count(name, "up") == 1 for name in names))
    for name in names:
        watched.runner.readiness(name, True)
    watched.runner.roll("w")
    await watched.until(lambda: watched.count("a", "up") == 2)
    assert watched.count("b", "drained") == 0, "the first isn't ready again"
    watched.runner.readiness("a", True)
    await watched.until(lambda: watched.count("b", "up") == 2)
    watched.runner.readiness("b", True)
    watched.runner.stop()
    await asyncio.wait_for(running, 10)
    assert [watched.count(name, "drained") for name in names] == [2, 2]


def test_waiting_for_a_role_that_nobody_has_is_refused() -> None:
    with pytest.raises(ValueError, match="nobody"):
        roles_of([Child("a", ("true",), after=("nobody",))])


async def test_a_stopped_child_still_drains() -> None:
    watched = Watched(Child("a", python(LOYAL)))
    running = asyncio.create_task(watched.runner.run())
    await watched.until(lambda: watched.count("a", "up") == 1)
    pid = watched.runner.pid("a")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    watched.runner.stop()
    await asyncio.wait_for(running, 10)
    assert watched.count("a", "drained") == 1


SUPERVISOR = """
    import asyncio, sys
    from services.runtime.children import Child, Children
    deaf = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
    deaf += "print(os.getpid(), flush=True)\\n"
    deaf += "while True: signal.pause()"
    children = [Child(name, (sys.executable, "-S", "-c", deaf)) for name in ("a", "b")]
    processes = Children(children, on_line=lambda name, line: print(line, flush=True))
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
