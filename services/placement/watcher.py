"""Starts and watches one role process on a machine of a cluster. What `up` is for all processes of a machine, this is
for one: it restarts what crashes, drains what is told to end, and its process never outlives it.

Knows no Ray: the keeper calls `tick` several times a second, by whatever way it has (ray_cluster.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Mapping
from typing import TypedDict

from mesh.supervisor import Policy
from mesh.supervisor.decide import number_of
from services.api.settings import Settings, load_settings, mesh_metrics_port
from services.placement.folder import OwnFolder
from services.placement.plan import cpus_of_worker
from services.runtime.children import Child, Children
from services.runtime.environment import environment_of
from services.runtime.roles import RENEWED_IN_PLACE
from specmesh import rooms

log = logging.getLogger(__name__)

# Beyond the drain itself, as in services/cli/up.py.
LEAVE_GRACE = 5.0  # s
MOST_SAID = 20
MOST_PORTS = 1000
# Ray sets it for what runs in the actor's own process; a worker's is that of its settings.
OF_RAY = ("OMP_NUM_THREADS",)


class Orders(TypedDict):
    """What the keeper tells a watcher: where the directory is, and what that has heard of the process `pid`."""

    directory: str
    pid: int
    ready: bool
    lost: bool
    desired: dict[str, int]
    numbers: dict[str, int]
    old: list[str]


class Report(TypedDict):
    """What a watcher answers. `desired`, `numbers` and `old` are what it was told last; a keeper that starts anew asks
    for them."""

    role: str
    instance: str
    machine: str
    address: str
    pid: int
    ended: bool
    said: list[str]
    desired: dict[str, int]
    numbers: dict[str, int]
    old: list[str]


class RoleWatcher:
    """One process of `role`. `environment`: the settings, as SPECMESH_* names; `secrets`: files, by name."""

    def __init__(
        self,
        role: str,
        instance: str,
        environment: Mapping[str, str],
        secrets: Mapping[str, str],
        machine: str,
        address: str,
        command: tuple[str, ...] = (),
    ) -> None:
        self.role, self.instance, self.machine, self.address = role, instance, machine, address
        self._folder = OwnFolder()
        self._folder.write_secrets(secrets)
        self._settings = self._settings_of(environment)
        child = Child(instance, command or rooms.command("services.cli", "run", role), self._environment())
        policy = Policy(
            kill_stuck_after=self._settings.kill_stuck_after,
            drain_timeout=self._settings.drain_timeout + LEAVE_GRACE,
        )
        self._processes = Children([child], policy, on_line=self._child_said, on_gave_up=self._gave_up)
        self._said: deque[str] = deque(maxlen=MOST_SAID)
        self._desired: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._old: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="role-watcher", daemon=True)
        self._started = self._ended = False

    def _settings_of(self, environment: Mapping[str, str]) -> Settings:
        settings = load_settings({}, environment)
        keys = str(self._folder.api_keys) if self._folder.api_keys.exists() else ""
        cpus = math.ceil(cpus_of_worker(settings)) if self.role == "worker" else settings.threads
        return settings.replaced(
            instance=self.instance,
            # Of the machine's cores Ray gave it no more.
            threads=settings.threads or cpus,
            run_dir=str(self._folder.path),
            # A folder that each machine has of its own, or what came with the order to start.
            keys_dir=settings.keys_dir or str(self._folder.keys),
            bind=f"tcp://{self.address}:0",
            advertise="",
            # By the instance's number, so that those of one machine don't take each other's.
            metrics_port=mesh_metrics_port(settings, self.role, (number_of(self.instance) - 1) % MOST_PORTS),
            directory=f"file://{self._folder.directory}",
            host_directory=False,
            api_keys_file=keys,
            record_steps=settings.record_steps and f"{settings.record_steps}.{self.instance}",
        )

    def _environment(self) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if name not in OF_RAY}
        return environment_of(ours, self.role, self._settings)

    # What the keeper calls --------------------------------------------------------------------------------------

    def tick(self, told: Orders) -> Report:
        if told["directory"] and not self._ended:
            self._desired, self._numbers, self._old = told["desired"], told["numbers"], told["old"]
            with contextlib.suppress(FileNotFoundError):
                # Unless it ends just now.
                self._folder.tell_directory(told["directory"])
            if not self._started:
                self._started = True
                self._thread.start()
        pid = self._processes.pid(self.instance) or 0
        if pid and told["pid"] == pid and not self._ended:
            self._loop.call_soon_threadsafe(self._processes.readiness, self.instance, told["ready"])
            if told["lost"] and self.role not in RENEWED_IN_PLACE:
                self._loop.call_soon_threadsafe(self._processes.fenced, self.instance)
        said = [self._said.popleft() for _ in range(len(self._said))]
        return Report(
            role=self.role, instance=self.instance, machine=self.machine, address=self.address, pid=pid,
            ended=self._ended, said=said, desired=self._desired, numbers=self._numbers,
            old=self._old,
        )  # fmt: skip

    def drain(self) -> None:
        """The process finishes what runs and ends; `tick` says when."""
        if not self._started:
            self._started = self._ended = True
            self._folder.remove()
        elif not self._ended:
            self._loop.call_soon_threadsafe(self._processes.stop)

    # The thread of the supervisor --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            # The kernel kills the child with the thread that started it, so this one lives as long as the process.
            self._loop.run_until_complete(self._processes.run())
        finally:
            self._ended = True
            self._folder.remove()

    def _child_said(self, name: str, line: str) -> None:
        print(f"{name:<12}| {line}", flush=True)

    def _gave_up(self, name: str, reason: str) -> None:
        self._said.append(f"{name} failed and will be tried again: {reason}"[:500])
