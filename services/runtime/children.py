"""The processes of one machine: starts, signals and reads them, and notes in their instances what happened.

It decides nothing: what is to be done, and when a crashed one is started again, is mesh/supervisor's. Children are tied
to this process: when it dies, in whatever way, the kernel kills them.
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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from mesh.clock import Clock, SystemClock
from mesh.supervisor.crashes import Crashes, Policy
from mesh.supervisor.decide import (
    KILL_AGAIN,
    Action,
    Desired,
    Drain,
    Instance,
    KeepOld,
    KillNow,
    Launch,
    Remove,
    Role,
    decide,
    next_wake,
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


@dataclass(frozen=True, slots=True)
class Child:
    """What is to run. `role`: its own name where nothing is said. `after`: the roles that start before it. `env` is the
    whole environment; empty: that of this process."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    role: str = ""
    after: tuple[str, ...] = ()
    stage: int = 0

    @property
    def of_role(self) -> str:
        return self.role or self.name


def roles_of(children: Iterable[Child]) -> dict[str, Role]:
    """Raises ValueError where one waits for a role that nobody has."""
    roles: dict[str, Role] = {}
    for child in children:
        count = roles[child.of_role].count if child.of_role in roles else 0
        roles[child.of_role] = Role(count + 1, child.stage, child.after)
    for name, role in roles.items():
        if unknown := [each for each in role.after if each not in roles]:
            raise ValueError(f"{name} waits for unknown roles: {', '.join(unknown)}")
    return roles


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


class Children:
    """Runs children until all have ended after `stop`. What is called here is called in the thread of the loop."""

    def __init__(
        self,
        children: Iterable[Child],
        policy: Policy | None = None,
        *,
        log_dir: Path | None = None,
        on_line: Callable[[str, str], None] | None = None,
        on_gave_up: Callable[[str, str], None] | None = None,
        on_exited: Callable[[str, int], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._policy = policy or Policy()
        self._children = {child.name: child for child in children}
        self._roles = roles_of(self._children.values())
        self._instances = {child.name: Instance(child.of_role, child.name) for child in self._children.values()}
        self._crashes = {name: Crashes(self._policy) for name in self._children}
        self._old: set[str] = set()
        self._stopping = False
        self._clock = clock or SystemClock()
        self._on_line = on_line or (lambda name, line: None)
        self._on_gave_up = on_gave_up or (lambda name, reason: None)
        self._on_exited = on_exited or (lambda name, pid: None)
        self._logs = {name: LogFile(log_dir / f"{name}.log") for name in self._children} if log_dir else {}
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._watchers: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    def pid(self, name: str) -> int | None:
        process = self._running.get(name)
        return process.pid if process else None

    # What happens ----------------------------------------------------------------------------------------

    def readiness(self, name: str, ready: bool) -> None:
        """What is known of a child from outside, by the directory as a rule. Unknown names are ignored."""
        if name in self._instances:
            self._instances[name].is_heard(ready, self._clock.now())
            self._changed.set()

    def fenced(self, name: str) -> None:
        """The process that runs now is fenced: it is killed and started again. Unknown names are ignored."""
        if name in self._running and name in self._instances:
            self._instances[name].fenced = True
            self._changed.set()

    def stop(self) -> None:
        """The first asks for a drain, the second for an end at once."""
        if self._stopping:
            for each in self._instances.values():
                each.kill_at = self._clock.now()
        self._stopping = True
        self._changed.set()

    def roll(self, role: str) -> None:
        """Those of the role that run are replaced, one after the other."""
        self._old = {each.name for each in self._instances.values() if (each.role, each.state) == (role, "running")}
        self._changed.set()

    def _exited(self, name: str, code: int, ran: float, said: tuple[str, ...] = ()) -> None:
        instance, now = self._instances[name], self._clock.now()
        self._old.discard(name)
        self._changed.set()
        if self._stopping:
            instance.ends("ended")
        elif instance.state == "draining":
            instance.ends("waiting", start_at=now)
        else:
            restart = self._crashes[name].restart(code, ran, now, said)
            start_at = None if restart.delay is None else now + restart.delay
            instance.ends("failed" if restart.failed else "waiting", start_at)
            self._say(name, f"failed: {restart.why}" if restart.failed else restart.why)
            if restart.failed:
                self._on_gave_up(name, restart.why)

    # What is done ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """From the first start until every child has ended after `stop`."""
        try:
            while self._instances:
                self._changed.clear()
                for action in decide(self._wanted(), list(self._instances.values()), self._clock.now()):
                    await self._act(action)
                if self._instances:
                    await self._until_changed()
        finally:
            await self._end_all()

    def _wanted(self) -> Desired:
        return Desired(self._roles, self._old, self._stopping, kill_stuck_after=self._policy.kill_stuck_after)

    async def _until_changed(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(next_wake(self._wanted(), list(self._instances.values()), self._clock.now())):
                await self._changed.wait()

    async def _act(self, action: Action) -> None:
        match action:
            case Launch(_, name):
                await self._launch(self._children[name])
            case Drain(name, why):
                self._instances[name].drains(self._clock.now() + self._policy.drain_timeout)
                self._signal(name, signal.SIGTERM, why)
            case KillNow(name, why):
                self._instances[name].kill_at = self._clock.now() + KILL_AGAIN
                self._signal(name, signal.SIGKILL, why)
            case Remove(name):
                del self._instances[name]
            case KeepOld(why):
                self._say("up", why)
                self._old.clear()

    async def _launch(self, child: Child) -> None:
        self._instances[child.name].starts()
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
            self._exited(child.name, 127, 0.0, (f"cannot be started: {error}",))
            return
        self._running[child.name] = process
        watcher = asyncio.create_task(self._watch(child.name, process, self._clock.now()))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)

    async def _watch(self, name: str, process: asyncio.subprocess.Process, began: float) -> None:
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
        self._exited(name, code, self._clock.now() - began, tuple(last))

    async def _read(self, name: str, process: asyncio.subprocess.Process, last: deque[str]) -> None:
        def keep(line: str) -> None:
            last.append(line)
            self._say(name, line)

        assert process.stdout is not None
        lines = LineReader(keep)
        while data := await process.stdout.read(65536):
            lines.feed(data)
        lines.close()

    def _signal(self, name: str, signal_: signal.Signals, why: str = "") -> None:
        if why:
            self._say(name, why)
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
            self._signal(name, signal.SIGKILL)
        if self._watchers:
            await asyncio.wait(self._watchers, timeout=5.0)
        for file in self._logs.values():
            file.close()


def _kill_group(pid: int) -> None:
    """What a child started itself, and left, goes with it: it led a group of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
