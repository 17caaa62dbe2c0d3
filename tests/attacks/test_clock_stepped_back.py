"""The clock steps back by an hour and a role is restarted: it must be taken for the newer one. In this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_mesh import until

from bench.running_mesh import free_ports
from mesh import epoch
from mesh.actor import Actor
from mesh.directory import DIRECTORY, DirectoryActor
from mesh.node import Node
from mesh.supervisor import EXIT_FENCED
from mesh.transport.zmq import ZmqTransport
from services.api.settings import Settings
from services.runtime.process import RoleProcess, mesh_codec

HOUR = 3600 * 10**6  # microseconds


class Idle(Actor):
    def __init__(self, context: Any) -> None: ...

    def ready(self) -> list[str]:
        return []

    def progress_age(self) -> float:
        return 0.0

    def load(self) -> int:
        return 0


class Host:
    """A directory, and a worker that can be started again and again."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self.run_dir.mkdir(mode=0o700)
        self.directory = DirectoryActor()
        self.node = Node(ZmqTransport(), mesh_codec(), name=DIRECTORY)

    def worker(self) -> RoleProcess:
        settings = Settings.for_tests(run_dir=str(self.run_dir), instance="worker-1", metrics_port=free_ports(1))
        return RoleProcess("worker", settings, Idle)

    def knows(self, worker: RoleProcess) -> bool:
        return any((each.epoch, each.state) == (worker.node.epoch, "ready") for each in self.directory.members())

    async def killed_when_ready(self) -> int:
        """The epoch of a worker that was there."""
        worker = self.worker()
        running = asyncio.ensure_future(worker.run())
        await until(lambda: self.knows(worker))
        running.cancel()
        await asyncio.wait([running])
        return worker.node.epoch


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(tmp_path)
    await host.node.start(f"ipc://{host.run_dir}/directory.sock")
    await host.node.spawn(host.directory, DIRECTORY)
    yield host
    await host.node.stop(0.2)


def step_back(monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    # As in a process that starts an hour earlier.
    monkeypatch.setattr(epoch, "_newest", 0)
    monkeypatch.setattr(epoch.time, "time_ns", lambda: (before - HOUR) * 1000)


async def test_a_restart_is_newer_by_the_run_dir(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    before = await host.killed_when_ready()
    step_back(monkeypatch, before)
    assert await host.killed_when_ready() > before


async def test_one_that_cannot_know_learns_it_from_its_peers_and_ends_to_be_newer_the_next_time(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await host.killed_when_ready()
    step_back(monkeypatch, before)
    (host.run_dir / epoch.FILE).unlink()
    ghost = host.worker()
    assert ghost.node.epoch < before
    async with asyncio.timeout(10.0):
        assert await ghost.run() == EXIT_FENCED
    assert await host.killed_when_ready() > before
