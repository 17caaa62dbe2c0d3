"""The faults of a soak, one at a time in an order that a seed decides. None outlives the run, and none needs root.

kill ROLE        kill -9 of one of its processes
stop ROLE        SIGSTOP, and SIGCONT after 1 to 5 s
lying proposer   one more joins for 10 s and is sure of nonsense; `late proposer`: of one that answers 200 ms late
descriptors      a process may open no more for 4 s (RLIMIT_NOFILE)
full disk        no proposer may write to a file for 10 s (RLIMIT_FSIZE)
overload         ten times the streams, for 5 s
roll             `specmesh roll`
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.failures.failover import instances
from bench.running_mesh import ROLES, ROOT, RunningMesh, open_files
from services.api.settings import PREFIX, Settings, to_environment

STOPPED_S = (1.0, 5.0)
LIED_S, DESCRIPTORS_S, DISK_S, OVERLOADED_S = 10.0, 4.0, 10.0, 5.0
# After a streamer was struck its connections may break for so long: a stop may last, and then it is replaced.
LOST_WITHIN_S = 12.0
LISTENS = "0A"  # in /proc/net/tcp


class Struck(NamedTuple):
    at: float
    fault: str


class Faults:
    """`overload(seconds)` sends more requests than can be served, for that long."""

    def __init__(
        self, mesh: RunningMesh, folder: Path, seed: int, overload: Callable[[float], Awaitable[None]]
    ) -> None:
        self._mesh, self._folder, self._overload = mesh, folder, overload
        self._chance = random.Random(f"soak/{seed}")
        # When a streamer was struck, its pid, and the ports of its clients.
        self._streamers: list[tuple[float, int, set[int]]] = []
        self.kinds: dict[str, Callable[[], Awaitable[str]]] = {
            **{f"kill {role}": partial(self._kill, role) for role in ROLES},
            **{f"stop {role}": partial(self._stop, role) for role in ROLES},
            "lying proposer": partial(self._proposer, "garbage"),
            "late proposer": partial(self._proposer, "slow"),
            "descriptors": self._descriptors,
            "full disk": self._full_disk,
            "overload": self._overloaded,
            "roll": self._roll,
        }

    async def strike(self, name: str) -> str:
        """Returns when it is over, and says what was struck. A soak outlives what goes wrong in a fault."""
        try:
            return await self.kinds[name]()
        except Exception as why:
            return f"not struck: {type(why).__name__} {why}"

    def broke_with_streamer(self, port: int, unheard: bool) -> bool:
        """Whether a connection that broke did so with its streamer, which was struck and has ended. `unheard`: nothing
        had come, so it may have waited to be accepted."""
        now = time.monotonic()
        recent = [each for each in self._streamers if now - each[0] < LOST_WITHIN_S]
        return any(has_ended(pid) and (unheard or port in ports) for _, pid, ports in recent)

    def _one(self, role: str) -> tuple[str, int]:
        return self._chance.choice(sorted(instances(self._mesh, role).items()))

    def _struck_one(self, role: str) -> tuple[str, int]:
        name, pid = self._one(role)
        if role == "streamer":
            self._streamers.append((time.monotonic(), pid, clients_of(pid, self._mesh.port)))
        return name, pid

    async def _kill(self, role: str) -> str:
        name, pid = self._struck_one(role)
        os.kill(pid, signal.SIGKILL)
        return name

    async def _stop(self, role: str) -> str:
        (name, pid), seconds = self._struck_one(role), self._chance.uniform(*STOPPED_S)
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return f"{name} for {seconds:.1f} s"

    async def _proposer(self, how: str) -> str:
        own = Settings.for_tests(
            run_dir=str(self._folder / "run"), store_dir="none", instance=f"proposer-{how}", metrics_port=-1
        )
        kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        with (self._folder / "faulty.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bench.failures.faulty_proposer", how,
                stdout=log, stderr=log, stdin=asyncio.subprocess.DEVNULL, cwd=ROOT,
                env={**kept, **to_environment(own), "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        async with ended(process):
            await asyncio.sleep(LIED_S)
        return how

    async def _descriptors(self) -> str:
        name, pid = self._one(self._chance.choice(ROLES))
        with limited(pid, resource.RLIMIT_NOFILE, open_files(pid)):
            await asyncio.sleep(DESCRIPTORS_S)
        return name

    async def _full_disk(self) -> str:
        with contextlib.ExitStack() as all_of_them:
            for pid in instances(self._mesh, "proposer").values():
                all_of_them.enter_context(limited(pid, resource.RLIMIT_FSIZE, 0))
            await asyncio.sleep(DISK_S)
        return "proposers"

    async def _overloaded(self) -> str:
        await self._overload(OVERLOADED_S)
        return f"{OVERLOADED_S:g} s"

    async def _roll(self) -> str:
        command = ("services.cli", "roll", f"--run-dir={self._folder}/run", f"--port={self._mesh.port}")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *command, cwd=ROOT, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        async with ended(process):
            code = await process.wait()
        return f"exit code {code}"


def deck(seed: int, names: list[str]) -> Iterator[str]:
    """Without end: all of them once, in another order each time."""
    chance = random.Random(f"faults/{seed}")
    while True:
        yield from chance.sample(names, len(names))


@contextlib.contextmanager
def limited(pid: int, which: int, soft: int) -> Iterator[None]:
    """Another process's soft limit; it may have ended meanwhile."""
    before = resource.prlimit(pid, which)
    resource.prlimit(pid, which, (soft, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, which, before)


@contextlib.asynccontextmanager
async def ended(process: asyncio.subprocess.Process) -> AsyncIterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()


def clients_of(pid: int, port: int) -> set[int]:
    """The ports of clients whose connections at `port` a process has accepted."""
    links = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(os.readlink(file))
    own = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    found = set()
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        words = line.split()
        here, there, state, inode = words[1], words[2], words[3], words[9]
        if inode in own and state != LISTENS and int(here.rpartition(":")[2], 16) == port:
            found.add(int(there.rpartition(":")[2], 16))
    return found


def has_ended(pid: int) -> bool:
    """Gone, or not yet waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True
