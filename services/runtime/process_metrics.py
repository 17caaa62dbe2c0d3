"""Metrics that every process has: whether it is ready, its progress and load, and the members it sees.

Read when they are scraped. Knows no role.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol, get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mesh.directory import Member
from mesh.directory.membership import State


class KnownMembers(Protocol):
    """mesh/directory/client.py: DirectoryClient."""

    @property
    def silence(self) -> float: ...
    def members(self, role: str | None = None) -> list[Member]: ...
    def lost(self, role: str | None = None) -> list[Member]: ...


class RunningProcess(Protocol):
    """services/runtime/process.py: RoleProcess."""

    def member(self) -> Member: ...


class ProcessMetrics(Collector):
    def __init__(self, registry: CollectorRegistry, process: RunningProcess, view: KnownMembers) -> None:
        self._process = process
        self._view = view
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Called at registration, before the process has joined the mesh."""
        return self._families(None, [], 0.0)

    def collect(self) -> Iterable[Metric]:
        seen = [*self._view.members(), *self._view.lost()]
        return self._families(self._process.member(), seen, self._view.silence)

    def _families(self, own: Member | None, seen: list[Member], silence: float) -> Iterable[Metric]:
        ready = own is not None and own.state == "ready"
        age, load = (own.progress_age, own.load) if own is not None else (0.0, 0)
        for name, help, value in (
            ("process_ready", "1 if the process is ready for work, else 0", float(ready)),
            (
                "process_progress_age_seconds",
                "Time since the process last completed work, in seconds; 0 when idle",
                age,
            ),
            ("process_load", "Requests or sequences in progress, as reported to the directory", load),
            (
                "directory_silence_seconds",
                "Time since the last list of members from the directory, in seconds; one comes every 0.5 s",
                silence,
            ),
        ):
            yield GaugeMetricFamily(f"specmesh:{name}", help, value)
        members = GaugeMetricFamily(
            "specmesh:directory_members",
            "Mesh members known to this process, by role and state; lost: stopped answering within the last minute",
            labels=["member_role", "state"],
        )
        counts = Counter((member.role, member.state) for member in seen)
        for role in sorted({role for role, _ in counts}):
            # Every state, so that the count of a state that nobody has any more goes back to 0.
            for state in get_args(State):
                members.add_metric([role, state], counts[role, state])
        yield members
