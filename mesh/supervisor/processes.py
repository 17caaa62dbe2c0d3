"""Carries a supervisor's instructions out: starts, signals and reads child processes.

It decides nothing; every decision is `mesh/supervisor/machine.py`'s. Children are tied to this process: when it dies,
in whatever way, the kernel kills them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

from mesh.clock import Clock, SystemClock
from mesh.supervisor.machine import (
    Begin,
    Child,
    Ended,
    Event,
    Exited,
    Fenced,
    GaveUp,
    Launch,
    Readiness,
    Report,
    RollAsked,
    Send,
    StopAsked,
    Supervisor,
    Tick,
)

log = logging.getLogger(__name__)

# Longer lines of a child are cut; its last lines are kept as the reason of a failure.
MAX_LINE = 4096
LAST_LINES = 20
MAX_LOG_BYTES = 16 << 20

# The first thing a child does, before it becomes the command: ask the kernel to be killed with its parent
# (prctl 1, PR_SET_PDEATHSIG, which survives exec), then see whether the parent died before that was asked.
_TIE = (
    "import ctypes,os,sys;"
    "ctypes.CDLL(None).prctl(1,9,0,0,0);"
    "os.getppid()==int(sys.argv[1]) or os._exit(1);"
    "os.execvpe(sys.argv[2],sys.argv[2:],os.environ)"
)


def tied(command: tuple[str, ...]) -> list[str]:
    """The command line that runs `command` as a child that doesn't outlive the calling process."""
    return [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), *command]


class LineReader:
    """Cuts a byte stream into lines of bounded length."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._give(line)
        if len(rest) > MAX_LINE:
            self._give(rest)
            rest = b""
        self._rest = rest

    def close(self) -> None:
        if self._rest:
            self._give(self._rest)
            self._rest = b""

    def _give(self, line: bytes) -> None:
        # A progress bar redraws itself with \r: only what it showed last is a line.
        shown = line.rstrip(b"\r").rsplit(b"\r", 1)[-1][:MAX_LINE]
        if shown:
            self._on_line(shown.decode("utf-8", "replace"))


class LogFile:
    """One child's log: appended to, put aside as NAME.1 when it is full."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] | None = path.open("ab", buffering=0)

    def write(self, line: str) -> None:
        """Raises OSError. The next line is tried again, also where the file could not be opened for this one."""
        if self._file is None:
            self._file = self._path.open("ab", buffering=0)
        self._file.write(line.encode("utf-8", "replace") + b"\n")
        if self._file.tell() > MAX_LOG_BYTES:
            self.close()
            self._path.replace(self._path.with_suffix(self._path.suffix + ".1"))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class Processes:
    """Runs a Supervisor until it has ended. `stop` may be called from a signal handler of the loop."""

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        log_dir: Path | None = None,
        on_line: Callable[[str, str], None] | None = None,
        on_gave_up: Callable[[str, str], None] | None = None,
        on_exited: Callable[[str, int], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._children = {child.name: child for child in supervisor.children()}
        self._clock = clock or SystemClock()
        self._on_line = on_line or (lambda name, line: None)
        self._on_gave_up = on_gave_up or (lambda name, reason: None)
        self._on_exited = on_exited or (lambda name, pid: None)
        self._logs = {name: LogFile(log_dir / f"{name}.log") for name in self._children} if log_dir else {}
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._watchers: set[asyncio.Task[None]] = set()
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def pid(self, name: str) -> int | None:
        process = self._running.get(name)
        return process.pid if process else None

    def readiness(self, name: str, ready: bool) -> None:
        """What is known of a child from outside, by the directory as a rule. Unknown names are ignored."""
        if name in self._children:
            self._events.put_nowait(Readiness(name, ready))

    def fenced(self, name: str) -> None:
        """The process that runs now is fenced: it is killed and started again. Unknown names are ignored."""
        if name in self._children:
            self._events.put_nowait(Fenced(name))

    def stop(self) -> None:
        self._events.put_nowait(StopAsked())

    def roll(self, names: tuple[str, ...]) -> None:
        """These are replaced, one after the other."""
        self._events.put_nowait(RollAsked(names))

    async def run(self) -> None:
        """From the first launch until every child has ended after `stop`."""
        self._events.put_nowait(Begin())
        try:
            while True:
                event = await self._next_event()
                for instruction in self._supervisor.handle(event, self._clock.now()):
                    match instruction:
                        case Launch(name):
                            await self._launch(self._children[name])
                        case Send(name, signal_):
                            self._send(name, signal_)
                        case Report(name, text):
                            self._say(name, text)
                        case GaveUp(name, reason):
                            self._say(name, f"failed: {reason}")
                            self._on_gave_up(name, reason)
                        case Ended():
                            return
        finally:
            await self._end_all()

    async def _next_event(self) -> Event:
        wake = self._supervisor.next_wake(self._clock.now())
        try:
            async with asyncio.timeout(wake):
                return await self._events.get()
        except TimeoutError:
            return Tick()

    async def _launch(self, child: Child) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *tied(child.command),
                env=dict(child.env) or None,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                # Ctrl-C goes to the whole foreground group: the order of the drain is ours to give.
                start_new_session=True,
            )
        except OSError as error:
            self._events.put_nowait(Exited(child.name, 127, (f"cannot be started: {error}",)))
            return
        self._running[child.name] = process
        watcher = asyncio.create_task(self._watch(child.name, process))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)

    async def _watch(self, name: str, process: asyncio.subprocess.Process) -> None:
        last: deque[str] = deque(maxlen=LAST_LINES)
        reading = asyncio.create_task(self._read(name, process, last))
        try:
            code = await process.wait()
            self._on_exited(name, process.pid)
            # What it said last is still in the pipe; a grandchild may hold the pipe open for ever.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await asyncio.shield(reading)
        finally:
            reading.cancel()
            _kill_group(process.pid)
        if self._running.get(name) is process:
            del self._running[name]
        self._events.put_nowait(Exited(name, code, tuple(last)))

    async def _read(self, name: str, process: asyncio.subprocess.Process, last: deque[str]) -> None:
        def keep(line: str) -> None:
            last.append(line)
            self._say(name, line)

        assert process.stdout is not None
        lines = LineReader(keep)
        while data := await process.stdout.read(65536):
            lines.feed(data)
        lines.close()

    def _send(self, name: str, signal_: signal.Signals) -> None:
        process = self._running.get(name)
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal_)
            if signal_ == signal.SIGTERM:
                # A stopped process doesn't see SIGTERM before it goes on.
                process.send_signal(signal.SIGCONT)

    def _say(self, name: str, line: str) -> None:
        if name in self._logs:
            try:
                self._logs[name].write(line)
            except OSError as error:  # a full disk must not take the mesh down
                log.warning("log of %s: %s", name, error)
        self._on_line(name, line)

    async def _end_all(self) -> None:
        """Nothing outlives `run`, also when it was cancelled or raised."""
        for name in list(self._running):
            self._send(name, signal.SIGKILL)
        if self._watchers:
            await asyncio.wait(self._watchers, timeout=5.0)
        for file in self._logs.values():
            file.close()


def _kill_group(pid: int) -> None:
    """What a child started itself, and left, goes with it: it led a group of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
