"""What is to be placed, where, and what is to go: values in, values out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.api.settings import Settings
from services.placement.plan import (
    Create,
    Drain,
    Machine,
    Remove,
    Share,
    Watcher,
    choose_machine,
    counts_of,
    decide,
    is_dead,
    shares_of,
)
from services.runtime.roles import STAGE

ROLES = ("tokenizer", "proposer", "worker", "streamer")
SHARES = {**{role: Share(0.2) for role in ROLES}, "worker": Share(1.0)}


def worker(number: int, state: str = "there", **more: object) -> Watcher:
    return Watcher("worker", f"worker-{number}", state, **more)  # type: ignore[arg-type]


def test_what_is_missing_is_made_under_new_names() -> None:
    watchers = [worker(1), worker(2, "dead"), worker(4, "draining")]
    out = decide({"worker": 3}, watchers, {"worker": 7}, STAGE)
    assert out == [Remove("worker-2"), Create("worker", "worker-8"), Create("worker", "worker-9")]


def test_what_is_too_much_drains_the_useless_and_the_idle_first() -> None:
    watchers = [
        worker(1, ready=True, load=9), worker(2, ready=True, load=1), worker(3, "placed"), worker(4, ready=False),
        worker(5, ready=True, load=1),
    ]  # fmt: skip
    assert decide({"worker": 2}, watchers, {}, STAGE) == [Drain("worker-3"), Drain("worker-4"), Drain("worker-5")]


def test_a_stop_drains_the_streamers_before_what_they_need() -> None:
    watchers = [Watcher(role, f"{role}-1", "there") for role in ROLES]
    everyone = dict.fromkeys(ROLES, 1)
    first = decide(everyone, watchers, {}, STAGE, stopping=True)
    assert first == [Drain("streamer-1")]
    watchers = [Watcher(each.role, each.instance, "ended" if each.role == "streamer" else "there") for each in watchers]
    assert decide(everyone, watchers, {}, STAGE, stopping=True) == [Remove("streamer-1"), Drain("worker-1")]
    left = [Watcher(role, f"{role}-1", "there") for role in ("tokenizer", "proposer")]
    assert decide(everyone, left, {}, STAGE, stopping=True) == [Drain("tokenizer-1"), Drain("proposer-1")]


STATES = st.sampled_from(["placed", "there", "draining", "ended", "dead"])


# On a loaded machine the first draw takes seconds.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(states=st.lists(STATES, max_size=8), wanted=st.integers(0, 8))
def test_after_the_decision_is_carried_out_there_are_as_many_as_wanted(states: list[str], wanted: int) -> None:
    watchers = [worker(number, state) for number, state in enumerate(states)]
    left = {each.instance for each in watchers if each.state != "draining"}
    for instruction in decide({"worker": wanted}, watchers, {"worker": len(states)}, STAGE):
        if isinstance(instruction, Create):
            assert instruction.instance not in {each.instance for each in watchers}
            left.add(instruction.instance)
        else:
            left.discard(instruction.instance)
    assert len(left) == wanted


def test_a_host_is_dead_when_neither_it_nor_its_process_is_heard() -> None:
    assert is_dead(2.5, has_answered=True, is_heard=False)
    assert not is_dead(1.5, has_answered=True, is_heard=False)
    assert not is_dead(60.0, has_answered=True, is_heard=True)
    # One that Ray has no room for yet.
    assert not is_dead(60.0, has_answered=False, is_heard=False)


def place(role: str, machines: Sequence[Machine], watchers: Sequence[Watcher] = (), home: str = "a") -> str:
    return choose_machine(role, SHARES, machines, watchers, home)


def test_workers_go_where_there_are_fewest_and_streamers_where_up_was_typed() -> None:
    machines = [Machine("a", 4), Machine("b", 2), Machine("c", 2)]
    watchers: list[Watcher] = []
    for number in range(6):
        watchers.append(worker(number, machine=place("worker", machines, watchers)))
    assert sorted(each.machine for each in watchers) == ["a", "a", "b", "b", "c", "c"]
    assert place("streamer", [*machines, Machine("d", 64)], watchers) == "a"


def test_a_full_node_is_none_and_without_any_ray_is_to_choose() -> None:
    machines = [Machine("a", 1.1), Machine("b", 0.5)]
    assert place("worker", machines) == "a"
    assert place("worker", machines, [worker(1, machine="a")]) == ""
    assert place("streamer", machines, [worker(1, machine="a")]) == "b"


def test_the_ranks_of_a_worker_need_room_on_one_machine() -> None:
    shares = shares_of(Settings.for_tests(executor="triton", tensor_parallel_size=2), 4.0)
    machines = [Machine("a", 8, gpus=1), Machine("b", 2, gpus=2)]
    assert choose_machine("worker", shares, machines, [], "a") == "b"
    # A core for each rank, too.
    assert shares["worker"].bundle() == {"CPU": 2.0, "GPU": 2.0}
    assert shares["worker"].told() == "2 CPUs and 2 GPUs"


@pytest.mark.parametrize(
    ("given_settings", "cluster_gpus", "gpus"),
    [
        ({"executor": "auto"}, 0.0, 0.0),
        ({"executor": "auto"}, 4.0, 1.0),
        ({"executor": "compiled"}, 4.0, 0.0),
        ({"executor": "triton"}, 0.0, 1.0),
        ({"engine": "mock"}, 4.0, 0.0),
    ],
)
def test_a_worker_takes_a_gpu_where_its_executor_runs_on_one(
    given_settings: dict[str, str], cluster_gpus: float, gpus: float
) -> None:
    shares = shares_of(Settings.for_tests(worker_cpus=3.0, **given_settings), cluster_gpus)
    assert shares["worker"] == Share(3.0, gpus)
    assert all(shares[role].gpus == 0 for role in ROLES if role != "worker")


@pytest.mark.parametrize(
    ("given_settings", "workers"),
    [({}, 1), ({"workers": 4}, 4), ({"min_workers": 2}, 2), ({"workers": 9, "max_workers": 3}, 3)],
)
def test_the_first_number_of_workers_lies_within_the_bounds(given_settings: dict[str, int], workers: int) -> None:
    assert counts_of(Settings.for_tests(**given_settings))["worker"] == workers
