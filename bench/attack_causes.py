"""What goes wrong around a mesh and ends again: its output isn't read, descriptors run out, the disk is full, the clock
is stepped. Run in a loop by `python -m bench attacks --minutes N`; each has the form of an attack and has ended when it
returns.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.attack_scripts import Seen
from bench.running_mesh import RunningMesh
from bench.stepped_clock import SteppedClock

PIPE_BYTES = 4096
DISK_MB = 128
LASTS_S = 10.0
KILLED = ("tokenizer", "proposer", "worker")


class PipedMesh(RunningMesh):
    """Its output goes through a small pipe to its file. Whoever reads the pipe can stall or leave."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.store = folder / "store"
        self._reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.clock = SteppedClock.make(folder)
        environment = self.clock.environment if self.clock else None
        super().__init__(folder, settings, stdout=writing, environment=environment)
        os.close(writing)
        self._reads = threading.Event()
        self._reads.set()
        self._reading_now = threading.Lock()
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._copy, daemon=True)
        self._reader.start()

    def _copy(self) -> None:
        reading = self._reading
        with self.output.open("ab") as file:
            while not self._closed.is_set():
                self._reads.wait()
                with self._reading_now:
                    if not (self._reads.is_set() and select.select([reading], [], [], 0.1)[0]):
                        continue
                    if not (data := os.read(reading, PIPE_BYTES)):
                        break
                file.write(data)
                file.flush()
        os.close(reading)

    def stall(self) -> None:
        """Nothing is read until `resume`, and nothing more can be written."""
        self._reads.clear()
        # A description of its own: the other one's flags are shared with the mesh.
        filling = os.open(f"/proc/self/fd/{self._reading}", os.O_WRONLY | os.O_NONBLOCK)
        with self._reading_now, suppress(BlockingIOError):
            while True:
                os.write(filling, b"\n")
        os.close(filling)

    def resume(self) -> None:
        self._reads.set()

    def close_reader(self) -> None:
        self._closed.set()
        self._reader.join()


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of DISK_MB at the folder, if this user may mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=700", "attacks", str(folder)]
    mounted = subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def stalled_output(mesh: PipedMesh) -> Seen:
    """Ctrl-S in the terminal while roles die: they must be started again meanwhile."""
    before = mesh.processes()
    mesh.stall()
    _kill(mesh)
    time.sleep(LASTS_S)
    after = mesh.processes()
    mesh.resume()
    back = [role for role in KILLED if after.get(role, before[role]) != before[role]]
    return Seen(f"{len(back)} of {len(KILLED)} roles restarted meanwhile", killed=KILLED)


def few_descriptors(mesh: PipedMesh) -> Seen:
    """Every process may open 256, and clients want more."""
    before = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in mesh.processes().values()}
    soft, hard = next(iter(before.values()))
    held: list[socket.socket] = []
    try:
        for pid in before:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (256, hard))
        for _ in range(400):
            with suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", mesh.port), 2.0))
        time.sleep(LASTS_S)
    finally:
        for each in held:
            each.close()
        # Those started meanwhile have the limit of `up`.
        for pid in mesh.processes().values():
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    return Seen(f"{len(held)} of 400 connections made", starves=True)


def full_disk(mesh: PipedMesh) -> Seen:
    filler = mesh.store / "filler"
    written = 0
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while written < 2 * DISK_MB * 2**20:
            written += file.write(b"\0" * 65536)
    files = len(list(mesh.store.rglob("*")))
    time.sleep(LASTS_S)
    more = len(list(mesh.store.rglob("*"))) - files
    filler.unlink()
    return Seen(f"{more} files appeared in the store while it was full")


def full_files(mesh: PipedMesh) -> Seen:
    """Where nothing can be mounted: no file may grow. It fails with EFBIG instead of ENOSPC."""
    pids = mesh.processes().values()
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    time.sleep(LASTS_S)
    for pid in mesh.processes().values():
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return Seen("by RLIMIT_FSIZE")


def stepped_clock(mesh: PipedMesh) -> Seen:
    """An hour back, then an hour ahead, and at each time roles die: their successors must be known as newer."""
    assert mesh.clock is not None
    before = mesh.processes()
    for seconds in (-3600, 3600):
        mesh.clock.step(seconds)
        _kill(mesh)
        time.sleep(LASTS_S)
    mesh.clock.step(0)
    after = mesh.processes()
    back = [role for role in KILLED if after.get(role, before[role]) != before[role]]
    return Seen(f"{len(back)} of {len(KILLED)} roles restarted meanwhile", killed=2 * KILLED)


def closed_output(mesh: PipedMesh) -> Seen:
    """`up` in a pipe whose reader has ended. It stays closed, so this is the last."""
    mesh.close_reader()
    _kill(mesh)
    time.sleep(1.0)
    return Seen(killed=KILLED)


def _kill(mesh: PipedMesh) -> None:
    """Restarts make output."""
    pids = mesh.processes()
    for role in KILLED:
        with suppress(ProcessLookupError):
            os.kill(pids[role], signal.SIGKILL)
