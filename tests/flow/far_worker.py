"""A worker behind a link of its own, for faults of a network: `specmesh run worker` in a network namespace, joined to
a mesh by tcp and CURVE keys over a pair of virtual Ethernet devices. Cutting the link is a partition: both sides live,
nothing arrives, and no connection ends. Linux only, and root only."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.running_mesh import ROOT, RunningMesh, free_ports
from mesh.security import make_keys
from services.api.settings import PREFIX, ROLES, Settings, to_environment

# A network for documentation: nobody's own.
HERE, THERE, MASK = "198.51.100.1", "198.51.100.2", 30


class Link:
    def __init__(self) -> None:
        name = secrets.token_hex(3)
        self.namespace, self._here, there = f"mesh{name}", f"vm{name}a", f"vm{name}b"
        _ip("netns", "add", self.namespace)
        _ip("link", "add", self._here, "type", "veth", "peer", "name", there, "netns", self.namespace)
        _ip("addr", "add", f"{HERE}/{MASK}", "dev", self._here)
        _ip("link", "set", self._here, "up")
        for inside in (f"addr add {THERE}/{MASK} dev {there}", f"link set {there} up", "link set lo up"):
            _ip("-n", self.namespace, *inside.split())

    def cut(self) -> None:
        _ip("link", "set", self._here, "down")

    def mend(self) -> None:
        _ip("link", "set", self._here, "up")

    def remove(self) -> None:
        _ip("netns", "del", self.namespace)


class FarWorker:
    """The process in the namespace; started again when it ends, as a supervisor there would."""

    def __init__(self, link: Link, settings: Settings, log: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        self._environment = {**kept, **to_environment(settings), "PYTHONPATH": str(ROOT)}
        self._command = ["ip", "netns", "exec", link.namespace, sys.executable, "-m", "services.cli", "run", "worker"]
        self._log = log
        self._closed = False
        self._process = self._start()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=self._environment, cwd=ROOT,
            )  # fmt: skip

    def _watch(self) -> None:
        while not self._closed:
            self._process.wait()
            if not self._closed:
                self._process = self._start()

    def close(self) -> None:
        self._closed = True
        self._process.terminate()
        try:
            self._process.wait(40)
        except subprocess.TimeoutExpired:
            self._process.kill()


@contextmanager
def mesh_with_far_worker(folder: Path, **settings: Any) -> Iterator[tuple[RunningMesh, Link]]:
    """One worker beside the other roles, and one behind the link."""
    link = Link()
    try:
        make_keys(folder / "keys", ROLES)
        shared = {**settings, "directory": f"tcp://{HERE}:{free_ports(1)}", "keys_dir": str(folder / "keys")}
        mesh = RunningMesh(folder, shared)
        try:
            mesh.wait_until_ready()
            own = Settings.for_tests(
                **shared, run_dir=str(folder / "run"), store_dir=str(folder / "store"), instance="worker-far",
                bind=f"tcp://{THERE}:7000", metrics_port=free_ports(1),
            )  # fmt: skip
            far = FarWorker(link, own, folder / "far.log")
            try:
                yield mesh, link
            finally:
                link.mend()
                far.close()
        finally:
            mesh.stop()
    finally:
        link.remove()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
