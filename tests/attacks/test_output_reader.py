"""The reader of the output of `specmesh up` stalls or is gone: the mesh goes on. Real processes, tiny roles."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from watching import wait_until

from bench.running_mesh import descendants, free_ports

ROOT = Path(__file__).parents[2]
TINY_UP = ROOT / "tests" / "services" / "cli" / "tiny_up.py"
LONG = 30.0  # s: more than anything here takes


class Mesh:
    """An `up` whose output goes into a small pipe, which the test reads or doesn't."""

    def __init__(self, folder: Path) -> None:
        self.port = free_ports(4)
        self.reader, self._writer = os.pipe()
        fcntl.fcntl(self._writer, fcntl.F_SETPIPE_SZ, 4096)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SPECMESH_", "TINY"))}
        env |= {
            "PYTHONPATH": str(ROOT),
            "SPECMESH_RUN_DIR": str(folder / "run"),
            "SPECMESH_METRICS_PORT": str(self.port),
            "SPECMESH_PORT": str(self.port),
        }
        command = [sys.executable, str(TINY_UP)]
        self.process = subprocess.Popen(command, env=env, stdout=self._writer, stderr=self._writer)

    def pid(self, role: str) -> int:
        commands = descendants(self.process.pid)
        return next((pid for pid, command in commands.items() if f"tiny_role.py {role}" in command), 0)

    def is_ready(self, role: int) -> bool:
        """Streamer, tokenizer, proposer, worker."""
        url = f"http://127.0.0.1:{self.port + role}/health/ready"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status) == 200
        return False

    def fill_the_pipe(self) -> None:
        # Opened anew, so that only our end doesn't wait.
        own = os.open(f"/proc/self/fd/{self._writer}", os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(own, b"\n")
        os.close(own)

    def close_reader(self) -> None:
        if self.reader:
            os.close(self.reader)
            self.reader = 0

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.close_reader()
        os.close(self._writer)


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    mesh = Mesh(tmp_path)
    yield mesh
    mesh.end()


def test_when_the_reader_is_gone_a_dead_role_is_replaced_and_sigterm_ends_it_with_0(mesh: Mesh) -> None:
    with os.fdopen(os.dup(mesh.reader)) as lines:
        for line in lines:
            if "worker-1 is ready after" in line:
                break
    mesh.close_reader()
    before = mesh.pid("worker")
    os.kill(before, signal.SIGKILL)
    assert wait_until(lambda: mesh.pid("worker") not in (0, before), LONG), f"up: {mesh.process.poll()}"
    assert wait_until(lambda: mesh.is_ready(3), LONG)
    mesh.process.send_signal(signal.SIGTERM)
    assert mesh.process.wait(LONG) == 0


def test_when_the_reader_stalls_a_dead_role_is_replaced_and_sigterm_is_heard(mesh: Mesh) -> None:
    assert wait_until(lambda: mesh.is_ready(3), LONG)
    mesh.fill_the_pipe()
    before = mesh.pid("worker")
    os.kill(before, signal.SIGKILL)
    assert wait_until(lambda: mesh.pid("worker") not in (0, before), LONG)
    assert wait_until(lambda: mesh.is_ready(3), LONG)
    mesh.process.send_signal(signal.SIGTERM)
    assert mesh.process.wait(LONG) == 0
