"""Another node of a worker for tests: `specmesh up --node-rank K` as a user runs it, a process tree of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from running_mesh import descendants, has_ended, until

from bench.running_mesh import ROOT, SPECMESH, free_ports

RANK = "services.worker.parallel.rank"


class OtherNode:
    def __init__(self, log: Path, node: int = 1, within: Sequence[str] = (), **settings: Any) -> None:
        """`within`: the start of a command that runs the rest of it elsewhere."""
        settings = {"run_dir": log.with_suffix(".run"), "metrics_port": free_ports(1), **settings}
        argv = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        self._command = [*within, *SPECMESH, "up", "--headless", f"--node-rank={node}", *argv]
        self._log = log
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("SPECMESH_")}
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=self._environment, cwd=ROOT,
            )  # fmt: skip

    def text(self) -> str:
        return self._log.read_text(errors="replace")

    def ranks(self) -> list[int]:
        return sorted(pid for pid, command in descendants(self.process.pid).items() if RANK in command)

    def restart(self) -> None:
        """As whoever supervises it there would, once it has ended."""
        self.process.wait(40)
        self.process = self._start()

    def wait_for(self, words: str) -> None:
        until(lambda: words in self.text(), 120.0, why=self.text, alive=self.process)

    def stop(self) -> int:
        left = self.ranks()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        until(lambda: all(map(has_ended, left)), 10.0, why=lambda: f"of these some were left: {left}")
        return self.process.returncode


@contextmanager
def other_node(log: Path, **settings: Any) -> Iterator[OtherNode]:
    node = OtherNode(log, **settings)
    try:
        yield node
    finally:
        node.stop()
