"""What counts as worse than the row before, and what isn't compared at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import regressions, rows
from bench.__main__ import NAMES
from bench.regressions import HIGHER, LOWER, WATCHED, Watched, fits, is_worse, leaves, worse
from tests.bench.made_rows import CPU, row


def mesh(tokens: float, **others: float) -> dict[str, object]:
    return {"throughput_naive": {"tokens_per_s": tokens, **others}, "resident_mb": {"worker": 50.0}}


def test_a_figure_that_got_worse_is_told_with_what_it_was_and_when() -> None:
    now, then = row("mesh", mesh(40_000), day=2), row("mesh", mesh(66_400), day=1)
    assert worse("mesh", now, [then]) == [
        "worse than 2026-11-01 abc1: throughput_naive/tokens_per_s 66 400 -> 40 000 (-40 %)"
    ]


def test_of_times_and_sizes_less_is_better() -> None:
    then = row("mesh", {"resident_mb": {"worker": 50.0, "proposer": 50.0}}, day=1)
    now = row("mesh", {"resident_mb": {"worker": 80.0, "proposer": 20.0}}, day=2)
    assert worse("mesh", now, [then]) == ["worse than 2026-11-01 abc1: resident_mb/worker 50 -> 80 (+60 %)"]


@pytest.mark.parametrize(
    ("what", "then"),
    [
        ("noise", row("mesh", mesh(50_000))),
        ("it got better", row("mesh", mesh(20_000))),
        ("another command", row("mesh", mesh(90_000), "--streams 8")),
        ("another machine", row("mesh", mesh(90_000), hardware=CPU | {"cores": 8})),
        ("another instruction set", row("mesh", mesh(90_000), hardware=CPU | {"flags": []})),
        ("a GPU", row("mesh", mesh(90_000), hardware=CPU | {"gpu": "Some GPU"})),
        ("a figure the row before hadn't", row("mesh", {})),
    ],
)
def test_nothing_is_told_of(what: str, then: rows.Row) -> None:
    assert worse("mesh", row("mesh", mesh(40_000), day=2), [then]) == []


def test_the_same_machine_under_another_load_is_compared() -> None:
    then = row("mesh", mesh(90_000), hardware=CPU | {"load_average": 9.0, "memory_gb": 8.1})
    assert len(worse("mesh", row("mesh", mesh(40_000), day=2), [then])) == 1


def test_only_the_last_row_counts() -> None:
    earlier = [row("mesh", mesh(90_000), day=1), row("mesh", mesh(41_000), day=2)]
    assert worse("mesh", row("mesh", mesh(40_000), day=3), earlier) == []


def test_a_figure_of_which_nobody_said_which_way_is_better_is_not_compared() -> None:
    then, now = mesh(50_000, wall_s=1.0), mesh(50_000, wall_s=100.0)
    assert worse("mesh", row("mesh", now, day=2), [row("mesh", then)]) == []
    assert worse("unheard_of", row("mesh", mesh(1), day=2), [row("mesh", mesh(90_000))]) == []


def test_what_was_none_and_is_some_is_told() -> None:
    then, now = ({"cells": {"kill, chat, 1 at a time": {"failed": count}}} for count in (0, 2))
    [line] = worse("faults", row("faults", now, day=2), [row("faults", then)])
    assert line.endswith("cells/kill, chat, 1 at a time/failed 0 -> 2 (from none)")


@given(st.floats(0.01, 1e6), st.floats(0.0, 0.9), st.floats(0.0, 3.0))
def test_what_is_worse_one_way_is_better_the_other(then: float, noise: float, factor: float) -> None:
    now = then * factor
    higher, lower = (is_worse(Watched("x", better, noise), then, now) for better in (HIGHER, LOWER))
    assert not (higher and lower)
    assert not higher or now < then
    assert not lower or now > then
    assert not is_worse(Watched("x", HIGHER, noise), then, then)


def test_a_pattern_is_for_each_name_of_a_path() -> None:
    assert fits("*/step_ms/rows *", "strict/step_ms/rows 8")
    assert not fits("*/step_ms", "strict/step_ms/rows 8") and not fits("step_ms/*", "strict/step_ms/rows 8")


def test_leaves_are_numbers_and_nothing_else() -> None:
    figures = {"a": {"b": 1.5, "ok": True, "none": None, "said": "x"}, "c": [2, [3, "y"]]}
    assert leaves(figures) == {"a/b": 1.5, "c/0": 2, "c/1/0": 3}


@pytest.mark.parametrize("name", WATCHED)
def test_every_watched_path_is_one_that_benchmarks_write(name: str) -> None:
    assert name in NAMES
    found = {path for each in rows.read(name) for path in leaves(each["figures"])}
    assert [each.path for each in WATCHED[name] if not any(fits(each.path, path) for path in found)] == []


@pytest.mark.parametrize(("value", "said"), [(66_400.4, "66 400"), (1e7, "10 000 000"), (0.0123, "0.0123"), (7, "7")])
def test_numbers_are_short(value: float, said: str) -> None:
    assert regressions.number(value) == said
