"""What every process tells Prometheus of its standing in the mesh: is it ready, does it get on, whom does it see.

Read when it is scraped. Knows no role.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol, get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mesh.directory import Member
from mesh.membership import State


class View(Protocol):
    """mesh/directory.py: DirectoryClient."""

    @property
    def silence(self) -> float: ...
    def members(self, role: str | None = None) -> list[Member]: ...
    def lost(self, role: str | None = None) -> list[Member]: ...


class Standing(Protocol):
    """services/runtime/process.py: RoleProcess."""

    def member(self) -> Member: ...


class StandingMetrics(Collector):
    def __init__(self, registry: CollectorRegistry, process: Standing, view: View) -> None:
        self._process = process
        self._view = view
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Asked for at registration, when nobody stands anywhere yet."""
        return self._families(None, [], 0.0)

    def collect(self) -> Iterable[Metric]:
        seen = [*self._view.members(), *self._view.lost()]
        return self._families(self._process.member(), seen, self._view.silence)

    def _families(self, own: Member | None, seen: list[Member], silence: float) -> Iterable[Metric]:
        for name, help, value in (
            ("process_ready", "1 while the process is ready for work", float(own is not None and own.state == "ready")),
            (
                "process_progress_age_seconds",
                "Time since the last completed piece of work while work waits; 0 when idle",
                own.progress_age if own is not None else 0.0,
            ),
            ("process_load", "Pieces of work that run or wait, as others are told", own.load if own is not None else 0),
            ("directory_silence_seconds", "Time since the directory told its table; about twice a second", silence),
        ):
            yield GaugeMetricFamily(f"specmesh:{name}", help, value)
        members = GaugeMetricFamily(
            "specmesh:directory_members",
            "Processes of the mesh as this one sees them, by role and state; lost: silent, for the last minute",
            labels=["member_role", "state"],
        )
        counts = Counter((member.role, member.state) for member in seen)
        for role in sorted({role for role, _ in counts}):
            # Every state, so that what was lost goes back to 0 instead of standing still.
            for state in get_args(State):
                members.add_metric([role, state], counts[role, state])
        yield members
