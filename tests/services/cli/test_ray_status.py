"""What `specmesh status` says of a mesh on Ray, from a keeper's status."""

from __future__ import annotations

from typing import Any

import pytest

from services.api.settings import Settings
from services.cli.ray_status import added, with_placement
from services.cli.status import screen
from services.placement.plan import Machine

MEMBER: dict[str, Any] = {
    "role": "worker", "state": "ready", "since_s": 1.0, "load": 1, "waiting": 0, "pid": 7, "serves": "tiny",
    "reasons": [],
}  # fmt: skip
FOUND: dict[str, Any] = {
    "url": "http://x", "ready": True, "reasons": [], "degraded": [],
    "members": [{**MEMBER, "instance": "worker-1"}, {**MEMBER, "instance": "worker-2"}],
}  # fmt: skip


def watcher(number: int, machine: str, address: str, **more: Any) -> dict[str, Any]:
    return {
        "role": "worker", "instance": f"worker-{number}", "machine": machine, "address": address, "state": "ready",
        "pid": 7, "waits_s": None, "needs": None, **more,
    }  # fmt: skip


def keeper(*watchers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"watchers": list(watchers), "desired": {"worker": 2}, "old": [], "autoscaling": None, **more}


def said(status: dict[str, Any], machines: list[Machine] | None = None) -> list[str]:
    found = with_placement(FOUND, status, machines or [])
    return [line.drawn(200, colours=False) for line in screen(found, 160)]


def test_each_process_has_its_machine() -> None:
    lines = said(keeper(watcher(1, "a" * 32, "10.0.0.1"), watcher(2, "b" * 32, "10.0.0.2")))
    assert "MACHINE" in lines[2] and "10.0.0.1 " in lines[3] and "10.0.0.2 " in lines[4]
    # Machines that share an address are told apart by Ray's ids.
    lines = said(keeper(watcher(1, "a" * 32, "10.0.0.1"), watcher(2, "b" * 32, "10.0.0.1")))
    assert "10.0.0.1/aaaaaa" in lines[3] and "10.0.0.1/bbbbbb" in lines[4]


@pytest.mark.parametrize(
    ("machine", "why"),
    [(Machine("a", 8, 1), "no machine has as many"), (Machine("a", 8, 2), "those that have as many are taken")],
)
def test_what_has_no_room_is_told_with_what_it_asked_for(machine: Machine, why: str) -> None:
    waits = watcher(3, "", "", state="placed", waits_s=34.2, needs={"CPU": 8.0, "GPU": 2.0})
    lines = said(keeper(watcher(1, "a", "h"), waits), [machine, Machine("b", 1)])
    assert lines[-1] == f"worker-3 waits for 8 CPUs and 2 GPUs on one machine (34s): {why}"


def test_autoscaling_is_a_line_with_its_bounds_and_what_it_did_last() -> None:
    scaling: dict[str, Any] = {"least": 1, "most": 3, "queue_s": None, "last": "", "last_s_ago": None}
    assert said(keeper(autoscaling=scaling))[-1] == "autoscaling: 1 to 3 workers, 2 wanted; no change so far"
    scaling |= {"queue_s": 0.4, "last": "1 → 2: requests wait 4.2 s", "last_s_ago": 12.0}
    assert said(keeper(autoscaling=scaling))[-1] == (
        "autoscaling: 1 to 3 workers, 2 wanted; requests wait 0.4 s; 12s ago 1 → 2: requests wait 4.2 s"
    )


def test_what_is_replaced_is_told() -> None:
    assert said(keeper(old=["worker-10", "worker-2"]))[-1].endswith("still to come: worker-2, worker-10")


def test_without_an_answer_of_ray_the_rest_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    found = added(FOUND, Settings.for_tests(ray_address="auto"))
    assert found["members"] == FOUND["members"] and found["ray"]["lines"][0].startswith("Ray: --on ray needs Ray")
