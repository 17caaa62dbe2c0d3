"""A real mesh for tests: `specmesh up` as a user runs it, in a folder and on ports of its own.

It knows the mesh from outside only: HTTP, process ids read from /proc, signals.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROLES = ("tokenizer", "proposer", "target", "streamer")


def free_ports(count: int) -> int:
    """The first of `count` consecutive ports that are free now, outside the range clients' ends are taken from."""
    for _ in range(100):
        first = random.randrange(20000, 32000)
        if all(_is_free(first + k) for k in range(count)):
            return first
    raise RuntimeError("no run of free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


def children_of(pid: int) -> dict[int, str]:
    """Living descendants: pid -> command line."""
    found: dict[int, str] = {}
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                if stat[0] != "Z":
                    parents[int(entry.name)] = int(stat[1])
            except OSError:
                continue
    wanted = {pid}
    while True:
        more = {child for child, parent in parents.items() if parent in wanted} - wanted
        if not more:
            break
        wanted |= more
    for child in wanted - {pid}:
        try:
            found[child] = (Path("/proc") / str(child) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


class RunningMesh:
    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.port = free_ports(1)
        self.metrics_base = free_ports(8)
        self.log = folder / "up.log"
        flags = {"run_dir": folder / "run", "port": self.port, "metrics_port": self.metrics_base, **settings}
        argv = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        self._log_file = self.log.open("wb")
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SPECMESH_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "services.cli", "up", *argv],
            stdout=self._log_file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=clean,
            cwd=Path(__file__).resolve().parents[2],
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def get(self, path: str, port: int | None = None, timeout: float = 5.0) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port or self.port}{path}", timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def ready(self) -> tuple[bool, dict[str, Any]]:
        status, body = self.get("/health/ready")
        return status == 200, json.loads(body) if status and body.startswith("{") else {}

    def wait_until_ready(self, seconds: float = 60.0) -> None:
        until(
            lambda: self.ready()[0],
            seconds,
            why=lambda: f"not ready: {self.ready()}\n{self.text()[-4000:]}",
            alive=self.process,
        )

    def metrics(self, role: str) -> dict[str, float]:
        """Every sample of a role: 'name{labels}' -> value; and 'name' -> sum over its labels."""
        order = ("streamer", "tokenizer", "proposer", "target")
        _, body = self.get("/metrics", port=self.metrics_base + order.index(role))
        samples: dict[str, float] = {}
        for line in body.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                samples[name] = float(value)
                bare = name.partition("{")[0]
                if bare != name:
                    samples[bare] = samples.get(bare, 0.0) + float(value)
        return samples

    def pid(self, role: str) -> int:
        pids = [p for p, command in children_of(self.process.pid).items() if re.search(rf"\brun {role}\b", command)]
        if not pids:
            raise LookupError(f"no {role} process among {children_of(self.process.pid)}")
        return min(pids)

    def kill(self, role: str, sig: int = signal.SIGKILL) -> int:
        pid = self.pid(role)
        os.kill(pid, sig)
        return pid

    def wait_for_another(self, role: str, than: int, seconds: float = 30.0) -> None:
        def there() -> bool:
            try:
                return self.pid(role) != than
            except LookupError:
                return False

        until(there, seconds, why=lambda: f"{role} was not restarted\n{self.text()[-4000:]}")

    def stop(self, seconds: float = 40.0) -> int:
        """Ctrl-C, as a user would; afterwards nothing may be left."""
        left = children_of(self.process.pid)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log_file.close()
        for pid in left:
            until(
                lambda pid=pid: has_ended(pid),
                5.0,
                why=lambda pid=pid: f"process {pid} ({left[pid]}) was left",
            )
        return self.process.returncode


def has_ended(pid: int) -> bool:
    """Gone, or a zombie: whoever adopts orphans here may not look after them."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def until(true: Any, seconds: float, why: Any, alive: subprocess.Popen[bytes] | None = None) -> None:
    """Wait for something another process will do; there is no event to wait on from here."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, why()
        assert alive is None or alive.poll() is None, f"ended with {alive.returncode}: {why()}"
        time.sleep(0.05)


@contextmanager
def running_mesh(folder: Path, **settings: Any) -> Iterator[RunningMesh]:
    mesh = RunningMesh(folder, settings)
    try:
        mesh.wait_until_ready(float(settings.pop("ready_within", 90.0)))
        yield mesh
    finally:
        mesh.stop()
