"""A mesh of its own for a benchmark: `specmesh up` in a temporary folder on free ports, seen from outside.

From outside means HTTP, /metrics and /proc: what an operator sees.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from loadtest.server_metrics import parse
from services.runtime.process_tree import descendants

ROOT = Path(__file__).resolve().parents[1]
SPECMESH = (sys.executable, "-m", "services.cli")
# In the order of their metrics ports.
ROLES = ("streamer", "tokenizer", "proposer", "worker")
# Below the range that clients' ends are taken from.
PORTS, PORTS_OF_A_PROCESS = (20000, 32000), 500
_turns = itertools.count()


class MeshFailed(Exception):
    """It did not become ready; the message holds the end of its output."""


class SeenMesh:
    """What anybody sees of a mesh with one process a role."""

    port: int
    metrics_base: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def metrics_url(self, role: str) -> str:
        return f"{self._side_door(role)}/metrics"

    def _side_door(self, role: str) -> str:
        return f"http://127.0.0.1:{self.metrics_base + ROLES.index(role)}"

    def metrics(self, role: str) -> dict[str, float]:
        """Samples by name, summed over labels."""
        summed: dict[str, float] = {}
        for (name, _), value in self._samples(role).items():
            summed[name] = summed.get(name, 0.0) + value
        return summed

    def by_label(self, role: str, name: str, label: str) -> dict[str, float]:
        """Samples of one metric, summed by a label's values."""
        summed: dict[str, float] = {}
        for (sample, labels), value in self._samples(role).items():
            if sample == name and (found := re.search(rf'\b{label}="([^"]*)"', labels)):
                summed[found[1]] = summed.get(found[1], 0.0) + value
        return summed

    def _samples(self, role: str) -> dict[tuple[str, str], float]:
        with urllib.request.urlopen(self.metrics_url(role), timeout=10) as answer:
            return parse(answer.read().decode())


class RunningMesh(SeenMesh):
    """`specmesh`: the command, and `root` its repository; another checkout has both of its own."""

    def __init__(
        self, folder: Path, settings: dict[str, Any], specmesh: Sequence[str] = SPECMESH, root: Path = ROOT,
        environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """`environment`: more variables."""
        self.port = free_ports(1)
        self.metrics_base = free_ports(8)
        self.output = folder / "up.log"
        own = {"run_dir": folder / "run", "store_dir": folder / "store"}
        flags = {**own, "port": self.port, "metrics_port": self.metrics_base, **settings}
        argv = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SPECMESH_")}
        with self.output.open("wb") as log:
            self.process = subprocess.Popen(
                [*specmesh, "up", *argv],
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**inherited, **(environment or {})}, cwd=root,
            )  # fmt: skip

    def wait_until_ready(self, seconds: float = 240.0) -> None:
        end = time.monotonic() + seconds
        while _status(f"{self.url}/health/ready") != 200:
            if self.process.poll() is not None or time.monotonic() > end:
                raise MeshFailed(self.output.read_text(errors="replace")[-4000:])
            time.sleep(0.1)

    def processes(self) -> dict[str, int]:
        """Role -> pid, and "up" for the supervisor. Of a role that is kept warm, the process that does the work."""
        found = {"up": self.process.pid}
        for pid, command in descendants(self.process.pid).items():
            if (role := re.search(r"\brun (\w+)\b", command)) and not is_parent(pid):
                found.setdefault(role[1], pid)
        return found

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode


@contextmanager
def running_mesh(**settings: Any) -> Iterator[RunningMesh]:
    with tempfile.TemporaryDirectory(prefix="mesh-") as folder:
        mesh = RunningMesh(Path(folder), settings)
        try:
            mesh.wait_until_ready()
            yield mesh
        finally:
            mesh.stop()


def resident_mb(pid: int) -> float:
    return _status_field(pid, "VmRSS") / 1024


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return _status_field(pid, "Threads")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def is_parent(pid: int) -> bool:
    """Whether it only waits to fork another worker (services/runtime/preload.py)."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip().endswith("-parent")
    except OSError:
        return False


def free_ports(count: int) -> int:
    """The first of `count` consecutive free ports. They come in turn from a range that no other process of this machine
    takes them from, as some time passes until a mesh has bound them."""
    first, _ = _own_range()
    for _ in range(PORTS_OF_A_PROCESS):
        start = next(_turns) % (PORTS_OF_A_PROCESS - count + 1)
        if all(_is_free(first + start + k) for k in range(count)):
            for _ in range(count - 1):
                next(_turns)
            return first + start
    raise MeshFailed("no run of free ports")


@functools.cache
def _own_range() -> tuple[int, IO[bytes]]:
    """The first port of this process's range, and the file whose lock it holds until it ends."""
    folder = Path(tempfile.gettempdir(), f"specmesh-ports-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    for first in range(*PORTS, PORTS_OF_A_PROCESS):
        lock = (folder / str(first)).open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        return first, lock
    raise MeshFailed(f"other processes hold all ranges of ports (locks in {folder})")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code
    except OSError:
        return 0


def _status_field(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    return 0
