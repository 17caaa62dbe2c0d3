"""The simulated mesh: nothing is lost in it, and what it measures is there."""

from __future__ import annotations

import argparse

import pytest

from bench import simulate
from bench.simulate import Mesh, Traffic, after_loss, figures_of, missed, simulated

REQUESTS = 1500


def options(**more: int) -> argparse.Namespace:
    return argparse.Namespace(**{"workers": 6, "streamers": 2, "requests": REQUESTS, "seed": 1, **more})


@pytest.mark.parametrize("policy", ["ring", "least", "round_robin"])
def test_every_request_ends_once_and_nothing_is_left_at_any_worker(policy: str) -> None:
    mesh = simulated(options(), policy)
    assert mesh.ended == REQUESTS and mesh.refused == 0
    assert not any(worker.load for worker in mesh.workers.values())
    assert not any(sum(own.values()) for own in mesh.own)


def test_every_request_ends_when_a_fifth_of_the_workers_is_lost() -> None:
    mesh = simulated(options(), "ring", lose_at=3.0)
    assert mesh.ended == REQUESTS and mesh.retried > 0
    assert all(worker.alive for worker in mesh.workers.values())
    assert after_loss(mesh, 3.0)["back after, s"] >= 0


def test_requests_with_one_beginning_find_it_cached_more_often_than_by_turns() -> None:
    by_key, by_turns = (figures_of(simulated(options(), policy))["prefix hits"] for policy in ("ring", "round_robin"))
    assert by_key > by_turns


def test_the_same_seed_gives_the_same_run() -> None:
    def figures() -> dict[str, object]:
        found = figures_of(simulated(options(), "ring"))
        return {name: value for name, value in found.items() if "us a" not in name}

    assert figures() == figures()


def test_a_worker_finds_only_the_beginning_of_a_prompt() -> None:
    worker = Mesh(1, 1, "ring", 10).workers["worker-0"]
    assert worker.hits((1, 2, 3)) == 0
    assert worker.hits((1, 2, 9)) == 2
    assert worker.hits((7, 2, 3)) == 0


def test_requests_beyond_the_limit_are_refused_and_the_others_end() -> None:
    mesh = Mesh(2, 1, "ring", limit=8)
    mesh.run(iter(Traffic(200.0, 4, 1)), 400)
    assert mesh.refused > 0 and mesh.ended + mesh.refused == 400


def test_each_bar_is_named_when_it_is_missed() -> None:
    good = {"max/mean load, median": 1.2, "prefix hits": 0.6, "us a routed request": 5.0}
    figures = {"ring": good, "round_robin": {"prefix hits": 0.3}, "a fifth is lost": {"back after, s": 5}}
    assert list(missed(figures)) == []
    bad = {"max/mean load, median": 2.0, "prefix hits": 0.3, "us a routed request": simulate.FLAT_US + 1}
    assert len(list(missed({**figures, "ring": bad, "a fifth is lost": {"back after, s": 31}}))) == 4
