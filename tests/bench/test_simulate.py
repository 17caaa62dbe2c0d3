"""The simulated mesh: nothing is lost in it, and what it measures is there."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from bench.simulated import simulate
from bench.simulated.mesh import LEAST_TIME, RESOLUTION, Mesh, Times
from bench.simulated.simulate import FAULTS, after, figures_of, missed, simulated
from bench.simulated.traffic import PAGE, RECORDED, Lengths, Request, Traffic, recorded
from bench.simulated.workers import PAGES, TOKENS_A_STEP, WITHOUT_DRAFTS, QueueWorker, prompt_tokens, text_of
from services.streamer.choice.routing import key_of

REQUESTS = 800
LENGTHS = [Lengths(20, 30), Lengths(100, 100), Lengths(400, 170)]


def options(**more: int) -> argparse.Namespace:
    usual = {"workers": 6, "streamers": 2, "requests": REQUESTS, "seed": 1, "scheduler": False}
    return argparse.Namespace(**{**usual, **more})


def run(policy: str = "ring", fault: str = "", **more: int) -> Mesh:
    return simulated(options(**more), policy, LENGTHS, fault, 3.0)[0]


@pytest.mark.parametrize("scheduler", [False, True])
@pytest.mark.parametrize("policy", simulate.POLICIES)
def test_every_request_ends_once_and_nothing_is_left_at_any_worker(policy: str, scheduler: bool) -> None:
    mesh = run(policy, scheduler=scheduler)
    assert mesh.ended == REQUESTS and mesh.refused == 0
    assert not any(worker.load for worker in mesh.workers)
    assert not any(router._running for router in mesh.routers)
    assert not mesh.total and not mesh.held


@pytest.mark.parametrize("scheduler", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_request_ends_whatever_is_lost(fault: str, scheduler: bool) -> None:
    mesh = run(fault=fault, scheduler=scheduler)
    assert mesh.ended + mesh.refused == REQUESTS
    assert (mesh.retried > 0, mesh.slowed > 0) == (fault == "lose", fault == "lose_proposer")
    assert all(worker.alive for worker in mesh.workers)
    assert after(mesh, 3.0)["back after, s"] >= 0


def test_answers_without_drafts_take_longer_for_as_long_as_the_proposer_is_lost() -> None:
    mesh = Mesh(1, 1, "ring", limit=10, proposers=1)
    mesh.tables()
    mesh.arrive(one := Request(0.0, 0, 0, 0, 0, None, 1000))
    before, mesh.now = one.ends, 1.0
    mesh.lose_proposer()
    assert one.ends - before == pytest.approx(WITHOUT_DRAFTS * (1 - 1 / TOKENS_A_STEP))
    assert list(mesh.workers[0].running) == [one]
    mesh.now = before
    mesh.workers[0].wake(one)
    assert mesh.ended == 0, "that was the end it would have had"
    mesh.now = one.ends
    mesh.workers[0].wake(one)
    assert mesh.ended == 1


def test_requests_with_one_beginning_find_it_cached_more_often_than_by_turns() -> None:
    by_key, by_turns = (figures_of(run(policy), 1.0)["prefix hits"] for policy in ("ring", "round_robin"))
    assert by_key > by_turns


@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_the_same_seed_gives_the_same_run(fault: str) -> None:
    # All are kept, so that each has its requests at other addresses.
    runs = [run(fault=fault) for _ in range(5)]
    figures = [{name: value for name, value in figures_of(each, 1.0).items() if "us a" not in name} for each in runs]
    assert all(each == figures[0] for each in figures)


def request(group: int, shared: int, own: int = 0) -> Request:
    return Request(0.0, 0, group, shared, own, None, 10)


def test_a_worker_finds_a_beginning_that_it_has_computed_until_others_take_its_place() -> None:
    worker = QueueWorker(Mesh(1, 1, "ring", limit=10), 0)
    assert worker.hits(request(1, 16, own=3)) == 0
    assert worker.hits(request(1, 16, own=3)) == 16
    assert worker.hits(request(2, 16)) == 0
    assert worker.hits(request(3, 0, own=PAGES)) == 0
    assert worker.hits(request(1, 16)) == 0
    assert worker.cached <= PAGES


def test_a_scheduler_reads_texts_that_have_the_keys_of_the_traffic() -> None:
    for _, each in zip(range(200), Traffic(200.0, 40, 1, LENGTHS), strict=False):
        text = text_of(each, 7)
        assert len(text) == prompt_tokens(each)
        assert not each.shared or key_of(text, PAGE) == each.key


@pytest.mark.parametrize("fault", ["", "lose"])
def test_queues_and_schedulers_find_as_much_cached(fault: str) -> None:
    queue, scheduler = (figures_of(run(fault=fault, scheduler=kind), 1.0) for kind in (False, True))
    assert scheduler["prefix hits"] == pytest.approx(queue["prefix hits"], abs=0.02)
    # A step isn't cut short for a request that comes, and prompts share their steps with answers.
    assert scheduler["queue time p50, s"] > queue["queue time p50, s"]


def test_requests_beyond_the_limit_are_refused_and_the_others_end() -> None:
    mesh = Mesh(2, 1, "ring", limit=8)
    mesh.run(iter(Traffic(200.0, 4, 1, LENGTHS)), 400)
    assert mesh.refused > 0 and mesh.ended + mesh.refused == 400


def test_queue_times_in_buckets_are_as_exact_as_the_buckets() -> None:
    times = Times()
    for number in range(1, 1001):
        times.add(number / 100, number / 1000)
    for share in (0.5, 0.99):
        assert share <= times.p(share) <= share * RESOLUTION * 1.001
    assert times.p(0.99, 2) <= 0.3 * RESOLUTION
    times.add(0.0, 0.0)
    assert times.p(0.0001) == LEAST_TIME


def test_recorded_lengths_are_answers_usage_or_a_log_of_requests(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"prompt_tokens": 5, "completion_tokens": 7},
        {"message": "request", "prompt_tokens": 3, "tokens": 2},
        {"prompt_tokens": 0, "completion_tokens": 7},
    ]
    file = tmp_path / "lengths.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert recorded(file) == [Lengths(5, 7), Lengths(3, 2)]
    file.write_text("")
    with pytest.raises(ValueError, match="no lengths"):
        recorded(file)
    assert len(recorded(RECORDED)) >= 50


def test_two_streamers_pass_on_what_connections_ask_for_up_to_twice_of_one() -> None:
    assert simulate.two_of_one(0.5) == 1.0
    assert 1.4 < simulate.two_of_one(1.5) <= 1.5
    assert 1.8 < simulate.two_of_one(2.0) < 1.95, "connections aren't shared out evenly"
    assert simulate.two_of_one(4.0) == 2.0


def test_each_bar_is_named_when_it_is_missed() -> None:
    good = {"max/mean load, median": 1.2, "prefix hits": 0.6, "us a routed request": 5.0}
    figures = {"ring": good, "round_robin": {"prefix hits": 0.3}, FAULTS["lose"]: {"back after, s": 5}}
    assert list(missed(figures)) == []
    bad = {"max/mean load, median": 2.0, "prefix hits": 0.3, "us a routed request": simulate.FLAT_US + 1}
    assert len(list(missed({**figures, "ring": bad, FAULTS["lose"]: {"back after, s": 31}}))) == 4
