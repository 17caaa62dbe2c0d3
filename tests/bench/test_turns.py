"""Ratios of turns, their intervals, and what they say of a bar."""

from __future__ import annotations

import math

import pytest

from bench import turns
from bench.turns import Ratio


def test_who_is_first_alternates() -> None:
    assert [turns.order(turn) for turn in range(4)] == [(0, 1), (1, 0), (0, 1), (1, 0)]


def test_pairs_give_their_geometric_mean_and_students_interval() -> None:
    ratio = turns.of_pairs([0.5, 1.0, 2.0])
    # Logarithms -ln 2, 0, ln 2: deviation ln 2, of three ln 2 / sqrt 3; t of 2 degrees is 4.30.
    reach = 4.30 * math.log(2) / math.sqrt(3)
    assert ratio.mean == pytest.approx(1.0)
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(-reach), math.exp(reach)))
    assert ratio.freedom == 2


def test_pairs_that_agree_leave_no_doubt() -> None:
    assert turns.of_pairs([0.9, 0.9, 0.9])[:3] == pytest.approx((0.9, 0.9, 0.9))


def test_more_pairs_narrow_the_interval() -> None:
    few, many = turns.of_pairs([0.9, 1.1] * 2), turns.of_pairs([0.9, 1.1] * 20)
    assert few.mean == pytest.approx(many.mean) and few.low < many.low < many.high < few.high


def test_the_mean_of_cells_is_surer_than_any_of_them() -> None:
    cells = [turns.of_pairs([0.95, 1.05, 1.0]), turns.of_pairs([0.85, 0.95, 0.9])]
    mean = turns.of_cells(cells)
    assert mean.mean == pytest.approx(math.sqrt(cells[0].mean * cells[1].mean))
    assert mean.error < min(cell.error for cell in cells) and mean.freedom == 4


@pytest.mark.parametrize(
    ("ratio", "how"),
    [
        (Ratio(0.98, 0.90, 1.10, 0.0, 1), None),
        (Ratio(0.96, 0.90, 1.02, 0.0, 1), "within noise"),
        (Ratio(0.90, 0.88, 0.92, 0.0, 1), "certain"),
    ],
)
def test_a_bar_is_met_or_missed_and_how_certain_that_is(ratio: Ratio, how: str | None) -> None:
    told = turns.missed("chat", ratio, 0.97)
    assert bool(told) == (how is not None)
    assert all(f"({how})" in line and "0.97" in line for line in told)


def test_time_is_shared_by_weight() -> None:
    assert turns.shares({"a": 1.0, "b": 3.0}, 100.0) == {"a": 25.0, "b": 75.0}
