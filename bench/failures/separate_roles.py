"""The four roles as processes of their own, as compose.yaml starts them, so that another proposer can take the place
of the real one while the rest runs on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.running_mesh import ROLES, ROOT, MeshFailed, SeenMesh, descendants, free_ports, is_parent
from services.api.settings import PREFIX, Settings, to_environment


class SeparateRoles(SeenMesh):
    """`run_role` starts one; the tokenizer hosts the directory."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.port = free_ports(1)
        self.metrics_base = free_ports(len(ROLES))
        self._settings = Settings.for_tests(run_dir=str(folder / "run"), port=self.port, **settings)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._instances = 0
        # Of those that were stopped: (role, pid) -> exit code.
        self.exits: dict[tuple[str, int], int] = {}

    @property
    def running(self) -> list[str]:
        return list(self._processes)

    def run_role(self, role: str, command: Sequence[str] = ()) -> None:
        """`command` instead of `specmesh run ROLE`."""
        self._instances += 1
        own = self._settings.replaced(
            instance=f"{role}-{self._instances}",
            metrics_port=self.metrics_base + ROLES.index(role),
            host_directory=role == "tokenizer",
        )
        kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        environment = {**kept, **to_environment(own), "PYTHONPATH": str(ROOT)}
        with self._log(role).open("ab") as log:
            self._processes[role] = subprocess.Popen(
                [sys.executable, *(command or ("-m", "services.cli", "run", role))],
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment, cwd=ROOT,
            )  # fmt: skip

    def stop_role(self, role: str) -> None:
        """Drained, as compose stops it; what doesn't end is killed, and the test hears of it."""
        process = self._processes.pop(role)
        process.terminate()
        try:
            self.exits[role, process.pid] = process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            self.exits[role, process.pid] = process.wait()

    def pid(self, role: str) -> int:
        """Of the process that does the work."""
        started = self._processes[role].pid
        return next(iter(descendants(started)), started) if is_parent(started) else started

    def kill_role(self, role: str) -> None:
        """As a crash does it; run_role starts another."""
        process = self._processes.pop(role)
        process.kill()
        process.wait()

    def replace_proposer(self, command: Sequence[str] = ()) -> None:
        self.stop_role("proposer")
        self.run_role("proposer", command)
        self.wait_until_ready("proposer")

    def wait_until_ready(self, *roles: str, seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        for role in roles:
            while not self._ready(role):
                if self._processes[role].poll() is not None or time.monotonic() > end:
                    raise MeshFailed(self.log(role))
                time.sleep(0.05)

    def log(self, role: str) -> str:
        return self._log(role).read_text(errors="replace")[-4000:]

    def _log(self, role: str) -> Path:
        return self.folder / f"{role}.log"

    def _ready(self, role: str) -> bool:
        try:
            with urllib.request.urlopen(f"{self._side_door(role)}/health/ready", timeout=5) as answer:
                return answer.status == 200 and not json.loads(answer.read()).get("degraded")
        except OSError:
            return False


@contextmanager
def separate_roles(folder: Path, **settings: Any) -> Iterator[SeparateRoles]:
    mesh = SeparateRoles(folder, **settings)
    try:
        for role in ("tokenizer", "proposer", "worker", "streamer"):
            mesh.run_role(role)
        mesh.wait_until_ready("tokenizer", "proposer", "worker", "streamer")
        yield mesh
    finally:
        # From the door inwards, as compose does.
        for role in ("streamer", "worker", "proposer", "tokenizer"):
            if role in mesh.running:
                mesh.stop_role(role)
    assert not any(mesh.exits.values()), (mesh.exits, {role: mesh.log(role) for role in ROLES})
