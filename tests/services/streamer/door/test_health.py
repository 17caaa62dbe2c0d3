from __future__ import annotations

from typing import Any

import msgspec

from mesh.directory.membership import Member
from services.streamer.door.health import SILENT_AFTER, readiness


def member(role: str, **facts: Any) -> Member:
    return Member(role=role, instance=f"{role}-1", endpoint="ipc:///x", epoch=1, **{"state": "ready", **facts})


def whole_mesh(**changed: list[Member]) -> dict[str, list[Member]]:
    return {role: [member(role)] for role in ("tokenizer", "worker", "proposer")} | changed


def test_a_whole_mesh_is_ready_and_every_role_is_shown() -> None:
    health = readiness(whole_mesh(), draining=False, stale_after=2.0)
    assert (health.status, health.body()["status"]) == (200, "ready")
    assert health.roles["worker"] == [{"instance": "worker-1", "state": "ready", "load": 0}]


def test_without_a_target_nothing_can_be_answered() -> None:
    health = readiness(whole_mesh(worker=[]), draining=False, stale_after=2.0)
    assert (health.status, health.reasons) == (503, ["worker: none is there"])


def test_a_silent_tokenizer_is_named() -> None:
    lost = member("tokenizer", state="lost", reasons=["not heard of for 2.4 s"])
    health = readiness(whole_mesh(tokenizer=[lost]), draining=False, stale_after=2.0)
    assert health.status == 503
    assert health.reasons == ["tokenizer: tokenizer-1 is lost (not heard of for 2.4 s)"]


def test_a_target_without_progress_is_stuck() -> None:
    stuck = member("worker", progress_age=3.0)
    health = readiness(whole_mesh(worker=[stuck]), draining=False, stale_after=2.0)
    assert health.reasons == ["worker: worker-1 is stuck (no progress for 3.0 s)"]


def test_one_good_instance_is_enough() -> None:
    two = [member("worker", state="lost"), member("worker")]
    assert readiness(whole_mesh(worker=two), draining=False, stale_after=2.0).status == 200


def test_without_a_proposer_the_mesh_is_only_slower() -> None:
    health = readiness(whole_mesh(proposer=[]), draining=False, stale_after=2.0)
    assert (health.status, health.degraded) == (200, ["proposer: none is there"])
    assert health.body()["status"] == "degraded"


def test_an_old_table_says_nothing_of_now() -> None:
    health = readiness(whole_mesh(), draining=False, stale_after=2.0, silence=SILENT_AFTER + 1.0)
    assert (health.status, health.reasons) == (503, ["directory: silent for 6.0 s"])
    assert readiness(whole_mesh(), draining=False, stale_after=2.0, silence=SILENT_AFTER).status == 200


def test_a_draining_door_is_not_ready() -> None:
    health = readiness(whole_mesh(), draining=True, stale_after=2.0)
    assert (health.status, health.reasons) == (503, ["streamer: draining"])


def test_streamers_are_listed_and_one_that_hangs_is_told_by_the_others() -> None:
    doors = [member("streamer"), member("streamer", state="lost", reasons=["not heard of for 2.4 s"])]
    doors[1] = msgspec.structs.replace(doors[1], instance="streamer-2")
    health = readiness(whole_mesh(streamer=doors), draining=False, stale_after=2.0, own_name="streamer-1")
    assert (health.status, health.reasons) == (200, [])
    assert health.degraded == ["streamer: streamer-2 is lost (not heard of for 2.4 s)"]
    assert [each["instance"] for each in health.roles["streamer"]] == ["streamer-1", "streamer-2"]
    # The one that says so isn't lost, whatever the table says.
    health = readiness(whole_mesh(streamer=doors), draining=False, stale_after=2.0, own_name="streamer-2")
    assert health.degraded == []
