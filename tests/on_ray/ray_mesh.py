"""Three machines of a Ray cluster on this machine, and a mesh on them, as a user starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster
from running_mesh import has_ended, until

from bench.failures import ray_machines
from bench.failures.ray_machines import three_machines
from bench.running_mesh import ROOT, descendants, free_ports
from services.placement import ray_cluster
from services.placement.ray_cluster import NAMESPACE, KeeperLink

__all__ = ["RayMesh", "ray_mesh", "role_processes", "three_machines", "wait_until_gone"]

SPECMESH = (sys.executable, "-m", "services.cli")
# Loading and compiling a real model on a busy machine takes minutes.
START = 400.0  # s


class RayMesh:
    def __init__(self, cluster: Cluster, folder: Path, **settings: Any) -> None:
        self.cluster = cluster
        self.port = free_ports(1)
        self.output = folder / "up.log"
        self.run_dir = folder / "run"
        own = {
            "run_dir": self.run_dir, "store_dir": folder / "store", "port": self.port,
            "metrics_port": free_ports(40), "ray_address": cluster.address,
        }  # fmt: skip
        argv = [f"--{name.replace('_', '-')}={value}" for name, value in {**own, **settings}.items()]
        with self.output.open("wb") as log:
            self.process = subprocess.Popen(
                [*SPECMESH, "up", "--on", "ray", *argv],
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=ROOT,
            )  # fmt: skip
        if not ray.is_initialized():
            ray.init(cluster.address, namespace=NAMESPACE, log_to_driver=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_until_ready(self) -> None:
        until(lambda: "is ready on Ray" in self.text(), START, lambda: self.text()[-6000:], self.process)

    def keeper(self) -> KeeperLink:
        found = ray_cluster.find_keeper()
        assert found is not None
        return found

    def watchers(self, role: str = "worker") -> list[dict[str, Any]]:
        status = self.keeper().status()
        return [each for each in status["watchers"] if each["role"] == role] if status else []

    def wait_for_workers(self, count: int, seconds: float = START) -> None:
        def there() -> bool:
            return [each["state"] for each in self.watchers()] == ["ready"] * count

        until(there, seconds, lambda: f"not {count} workers: {self.watchers()}\n{self.text()[-6000:]}")

    def placed_after(self, instance: str) -> float:
        """Seconds from when it was wanted to when it ran."""
        found = re.search(rf"{instance} runs on \S+ ([0-9.]+) s after it was wanted", self.text().replace(",", ""))
        assert found, self.text()[-6000:]
        return float(found[1])

    def kill_machine(self, node_id: str) -> None:
        ray_machines.kill_machine(self.cluster, node_id)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        flags = [f"--run-dir={self.run_dir}", f"--ray-address={self.cluster.address}"]
        return subprocess.run([*SPECMESH, *words, *flags], cwd=ROOT, capture_output=True, text=True, timeout=300)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(90)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def role_processes() -> dict[int, str]:
    """Those that the machines of this test process's cluster run."""
    return {pid: line for pid, line in descendants(os.getpid()).items() if " services.cli run " in line}


def wait_until_gone(pids: list[int]) -> None:
    until(lambda: all(map(has_ended, pids)), 20.0, lambda: f"left: {[pid for pid in pids if not has_ended(pid)]}")


@contextmanager
def ray_mesh(cluster: Cluster, folder: Path, **settings: Any) -> Iterator[RayMesh]:
    mesh = RayMesh(cluster, folder, **settings)
    try:
        mesh.wait_until_ready()
        yield mesh
    finally:
        mesh.stop()
