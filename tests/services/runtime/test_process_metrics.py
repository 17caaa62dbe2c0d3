"""What a process tells of its standing, scraped from a registry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from mesh.directory import Member
from services.runtime.process_metrics import ProcessMetrics


class Process:
    def __init__(self) -> None:
        self.now = Member("worker", "t-1", "ipc:///t", 1, "ready", 1.5, 3)

    def member(self) -> Member:
        return self.now


class View:
    silence = 0.25

    def __init__(self) -> None:
        self.alive = [Member(role, f"{role}-1", f"ipc:///{role}", 1, "ready") for role in ("worker", "proposer")]
        self.gone: list[Member] = []

    def members(self, role: str | None = None) -> list[Member]:
        return self.alive

    def lost(self, role: str | None = None) -> list[Member]:
        return self.gone


def test_a_ready_process_tells_its_progress_its_load_and_when_it_last_heard_of_others() -> None:
    registry = CollectorRegistry()
    ProcessMetrics(registry, Process(), View())
    assert registry.get_sample_value("specmesh:process_ready") == 1
    assert registry.get_sample_value("specmesh:process_progress_age_seconds") == 1.5
    assert registry.get_sample_value("specmesh:process_load") == 3
    assert registry.get_sample_value("specmesh:directory_silence_seconds") == 0.25


def test_a_process_that_is_not_ready_says_so() -> None:
    registry, process = CollectorRegistry(), Process()
    ProcessMetrics(registry, process, View())
    process.now = Member("worker", "t-1", "ipc:///t", 1, "unready")
    assert registry.get_sample_value("specmesh:process_ready") == 0


def test_who_is_lost_moves_from_one_state_to_the_other() -> None:
    registry, view = CollectorRegistry(), View()
    ProcessMetrics(registry, Process(), view)

    def proposers(state: str) -> float | None:
        labels = {"member_role": "proposer", "state": state}
        return registry.get_sample_value("specmesh:directory_members", labels)

    assert (proposers("ready"), proposers("lost")) == (1, 0)
    view.gone = [Member("proposer", view.alive.pop().instance, "ipc:///p", 1, "lost")]
    assert (proposers("ready"), proposers("lost")) == (0, 1)
