"""A real mesh for tests: `specmesh up` as a user runs it, in a folder and on ports of its own.

What is seen of it from outside is bench/running_mesh.py; here is what tests do to it, and what they insist on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from bench.running_mesh import ROLES, descendants
from bench.running_mesh import RunningMesh as SeenMesh

__all__ = ["MOCK", "ROLES", "RunningMesh", "descendants", "has_ended", "mesh_fixture", "running_mesh", "until"]

MOCK = '{"step_ms": 2, "acceptance": 0.6, "vocab_size": 49152}'


class RunningMesh(SeenMesh):
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def get(self, path: str, port: int | None = None) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port or self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def healthy(self) -> bool:
        """Ready, and nothing to complain about."""
        status, text = self.get("/health/ready")
        if status != 200:
            return False
        found = json.loads(text)
        return not found.get("reasons") and not found.get("degraded")

    def pid(self, role: str) -> int:
        pids = self.processes()
        if role not in pids:
            raise LookupError(f"no {role} process among {pids}")
        return pids[role]

    def kill(self, role: str, sig: int = signal.SIGKILL) -> int:
        pid = self.pid(role)
        os.kill(pid, sig)
        return pid

    def wait_for_another(self, role: str, than: int) -> None:
        def there() -> bool:
            return self.processes().get(role, than) != than

        until(there, 30.0, why=lambda: f"{role} was not restarted\n{self.text()[-4000:]}")

    def stop(self) -> int:
        """Ctrl-C, as a user would; afterwards nothing may be left."""
        left = descendants(self.process.pid)
        code = super().stop()
        until(lambda: all(map(has_ended, left)), 5.0, why=lambda: f"of these some were left: {left}")
        return code


def has_ended(pid: int) -> bool:
    """Gone, or a zombie: whoever adopts orphans here may not look after them."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def until(
    true: Callable[[], bool], seconds: float, why: Callable[[], Any], alive: subprocess.Popen[bytes] | None = None
) -> None:
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
        mesh.wait_until_ready()
        yield mesh
    finally:
        mesh.stop()


def mesh_fixture(scope: Literal["module", "package"], **settings: Any) -> Any:
    """A mesh for the tests of a module or a package."""

    @pytest.fixture(scope=scope)
    def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
        with running_mesh(tmp_path_factory.mktemp("mesh"), **settings) as mesh:
            yield mesh

    return started
