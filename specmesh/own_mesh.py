"""A mesh that belongs to this program: `specmesh up` as a child, with a Unix socket instead of ports.

It ends with this program, however that ends: the child reads a pipe that only this process holds, which the kernel
closes. A process forked from this one closes its copy at once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

from specmesh import rooms

# What `up` needs to drain, and to be killed if it doesn't end.
STOP_SECONDS = 20.0
SHOWN_BYTES = 3000
_open: weakref.WeakSet[OwnMesh] = weakref.WeakSet()


class StartFailed(RuntimeError):
    """The mesh didn't become ready; the message holds the end of its log."""


class OwnMesh:
    def __init__(self, model: str, settings: dict[str, Any]) -> None:
        """Started, and perhaps not ready yet. `settings`: those of `specmesh up`, by its names or another server's."""
        self.folder = Path(tempfile.mkdtemp(prefix="specmesh-"))
        self.socket = str(self.folder / "door.sock")
        own = {"uds": self.socket, "run_dir": str(self.folder), "metrics_port": -1, "store_dir": "none"}
        flags = [flag for name, value in {**own, **settings}.items() for flag in flags_of(name, value)]
        words = ["up", *([model] if model else []), "--until-stdin-closes", *flags]
        self._log = self.folder / "up.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                rooms.command("services.cli", *words), stdin=subprocess.PIPE, stdout=log, stderr=log,
                start_new_session=True,  # Ctrl-C in a notebook is for the cell
            )  # fmt: skip
        self._lock = threading.Lock()
        _open.add(self)
        # Also where this object is only forgotten, and before a program ends.
        self._finalizer = weakref.finalize(self, _stop, self._process, self.folder, os.getpid())

    @property
    def pid(self) -> int:
        """Of `up`; the others are below it."""
        return self._process.pid

    def check(self) -> None:
        """Raises StartFailed if it has ended."""
        if self._process.poll() is not None:
            raise StartFailed(f"the mesh has ended (exit code {self._process.returncode})\n{self.said()}")

    def said(self) -> str:
        """The end of its log."""
        try:
            return self._log.read_bytes()[-SHOWN_BYTES:].decode(errors="replace").strip()
        except OSError:
            return ""

    def close(self) -> None:
        """Repeat-safe."""
        with self._lock:
            self._finalizer()

    def forget_in_fork(self) -> None:
        """In a forked child: the mesh is the parent's."""
        self._finalizer.detach()
        if self._process.stdin is not None:
            os.close(self._process.stdin.fileno())


def flags_of(name: str, value: Any) -> list[str]:
    """As words of `specmesh up`."""
    flag = "--" + name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, dict | list):
        value = json.dumps(value)
    return [f"{flag}={str(value).lower() if isinstance(value, bool) else value}"]


def _stop(process: subprocess.Popen[bytes], folder: Path, owner: int) -> None:
    if os.getpid() != owner:
        return
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        # Its children die with it.
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _after_fork() -> None:
    for each in list(_open):
        each.forget_in_fork()


os.register_at_fork(after_in_child=_after_fork)
