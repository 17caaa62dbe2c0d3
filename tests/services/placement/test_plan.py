"""What is to be placed, where, and what is to go: values in, values out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from services.api.settings import Settings
from services.placement.plan import (
    Machine,
    Share,
    Watcher,
    choose_machine,
    counts_of,
    is_dead,
    shares_of,
)

ROLES = ("tokenizer", "proposer", "worker", "streamer")
SHARES = {**{role: Share(0.2) for role in ROLES}, "worker": Share(1.0)}


def worker(number: int, state: str = "running", **more: object) -> Watcher:
    return Watcher("worker", f"worker-{number}", state, **more)  # type: ignore[arg-type]


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
