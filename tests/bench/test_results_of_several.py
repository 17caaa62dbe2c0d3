"""Sections about workers that die and about many workers, from rows that are made up."""

from __future__ import annotations

from typing import Any

from bench import split as bench_split
from bench.failures import on_ray as bench_on_ray
from bench.failures.on_ray import PHASES
from bench.results_of_several import FAULTS, RAY_PHASES, ROUTED, SPLIT, SPLIT_SIDES, failover, on_ray, simulated, split
from bench.section import Section
from bench.simulated import simulate
from tests.bench.made_rows import row

GAPS = {"failed": 0, "differ": 0, "gap p50, s": 0.2, "gap p99, s": 0.9, "gap, longest, s": 1.1}
ROUTE = {
    "prefix hits": 0.64, "max/mean load, median": 1.23, "max/mean load, worst": 1.3, "queue time p50, s": 0.01,
    "queue time p99, s": 0.14, "ended": 9, "refused": 0, "sent again": 7, "slowed": 0, "us a routed request": 9.5,
}  # fmt: skip
LOSS = {"queue time p99 before, s": 0.14, "queue time p99, worst second, s": 0.5, "back after, s": 3}


def text(section: Section | None) -> str:
    assert section is not None
    return section.made(lambda name: f"{name}.svg")


def of_workers(number: int, curve: list[Any] | None = None) -> dict[str, Any]:
    faults = {name: {**ROUTE, **LOSS, "curve": curve or []} for name in FAULTS}
    return {"workers": number, "streamers": 4, "requests": 1000, **dict.fromkeys(ROUTED, ROUTE), **faults,
            "two streamers, of one": {"4.0": 1.99}}  # fmt: skip


def test_the_names_of_policies_and_faults_are_those_that_simulate_writes() -> None:
    assert tuple(ROUTED) == simulate.POLICIES and tuple(simulate.FAULTS.values()) == FAULTS
    assert RAY_PHASES == PHASES


def test_faults_of_two_rows_are_tables_with_their_calm_runs_and_the_newer_is_shown() -> None:
    old = row("failover", {"calm": GAPS, "kill": {**GAPS, "times": 5, "seen after, s": 9.9}}, day=1)
    new = row("failover", {"calm": GAPS, "kill": {**GAPS, "times": 50, "seen after, s": 0.4, "failed": 1}}, day=2)
    stop = row("failover", {"calm": GAPS, "stop": {**GAPS, "times": 5, "seen after, s": 2.4}}, day=3)
    made = text(failover({"failover": [old, new, stop]}))
    assert "| killed (kill -9) | 50 | 1 | 0 | 0.4 | 0.2 | 0.9 | 1.1 |" in made
    assert "9.9" not in made and made.count("| calm run |") == 2 and "stopped" in made
    assert failover({}) is None


def test_a_death_on_ray_has_its_phases_and_the_round_trip_its_ratio() -> None:
    phases = {f"{name}{of}, s": 1.5 for name in PHASES for of in (" p50", ", longest")}
    machine = {**GAPS, **phases, "times": 5, "failed": 2}
    death = row("on_ray", {"engine": "mock", "calm": GAPS, "machine": machine}, day=1)
    trip = row("on_ray", {"up, ms": 5.1, "ray, ms": 5.2, "ratio": 1.02, "rounds": 6}, day=2)
    made = text(on_ray({"on_ray": [death, trip]}))
    assert "| mock engine, a node dies | 5 | 2 | 0 |" in made and made.count("| 1.5 | 1.5 |") == len(PHASES)
    assert "| 5.1 | 5.2 | 1.02 |" in made
    assert on_ray({}) is None and "ratio" not in text(on_ray({"on_ray": [death]}))


def test_the_phases_are_medians_and_longest_and_a_bar_that_is_missed_is_named() -> None:
    seen = bench_on_ray.phases([bench_on_ray.Death(2.0, 3.0, 4.0), bench_on_ray.Death(2.4, 3.4, 8.4)])
    assert seen["noticed p50, s"] == 2.2 and seen["ready p50, s"] == 6.2 and seen["ready, longest, s"] == 8.4
    (missed,) = bench_on_ray.missed({"machine": {**GAPS, **seen}})
    assert "placed anew after 6.2 s" in missed
    assert bench_on_ray.missed({"ratio": 1.04}) == [] and bench_on_ray.missed({"ratio": 1.06})


def test_the_widest_simulation_is_drawn_and_each_size_is_shown_once() -> None:
    rows = [
        row("simulate", of_workers(100, [[-1, 0.1], [0, 0.5], [1, 0.1]]), day=1),
        row("simulate", of_workers(1000, [[-1, 0.1], [0, 0.6]]), day=2),
        row("simulate", of_workers(100), day=3),
    ]
    section = simulated({"simulate": rows})
    made = text(section)
    assert section is not None and "A fifth of 1000 workers is lost" in section.pictures["simulate"]
    assert made.count("| by the prompt's beginning |") == 2
    assert "asked for 4 times that: 1.99" in made
    assert "1.23" in made and "64.0 %" in made
    assert simulated({}) is None


def test_rows_of_an_older_form_are_left_out() -> None:
    assert simulated({"simulate": [row("simulate", {"workers": 20, "streamers": 4})]}) is None


def test_sides_of_a_split_are_lines_and_texts_that_differ_are_told() -> None:
    figures = {f"{side}_{name}": 10.0 for side in ("together", "split") for name in SPLIT} | {"split_itl_p99_ms": 30.6}
    made = text(split({"split": [row("split", figures | {"same_texts": True})]}))
    assert "| 1 prefill, 1 decode worker | 10 | 30.6 | 10 |" in made and "All texts are the same" in made
    assert "2 prefill" not in made and set(SPLIT_SIDES) == set(bench_split.SIDES)
    assert "**Texts differ.**" in text(split({"split": [row("split", figures | {"same_texts": False})]}))
    assert split({}) is None
