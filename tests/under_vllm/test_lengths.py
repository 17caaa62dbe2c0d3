"""Drafts are as long as pays, by what this engine accepted and what its rows cost."""

from __future__ import annotations

import numpy as np
import pytest

from specmesh.vllm.lengths import COST_STEPS, FIRST, LEAST, MOST_SOURCES, Acceptance, RowCost, Waiting


def draft(acceptance: Acceptance, chance: float, source: str = "own") -> list[int]:
    """The cells of sixteen tokens."""
    return acceptance.cells([source], [16], np.full(16, chance).tobytes())


def seen(acceptance: Acceptance, chance: float, right: int, times: int = 100, source: str = "own") -> None:
    """So many were accepted; the next one was not, if there was one."""
    for _ in range(times):
        acceptance.learn(draft(acceptance, chance, source)[: right + 1], right)


def length(acceptance: Acceptance, chance: float, most: int, least: float, source: str = "own") -> int:
    return acceptance.length(draft(acceptance, chance, source)[:most], least)


def test_a_draft_ends_where_its_chance_falls_below_what_pays() -> None:
    acceptance = Acceptance()
    lengths = [length(acceptance, 0.75, 16, least) for least in (0.9, 0.5, 0.1, 0.0)]
    assert lengths == sorted(lengths) and lengths[0] == 0 and lengths[-1] == 16
    assert length(acceptance, 0.75, 3, 0.0) == 3


def test_a_confidence_that_was_too_high_is_corrected_by_what_was_accepted() -> None:
    acceptance = Acceptance()
    assert length(acceptance, 0.99, 16, 0.5) == 16
    seen(acceptance, 0.99, right=0)
    assert length(acceptance, 0.99, 16, 0.5) == 0
    # Of another source nothing was seen.
    assert length(acceptance, 0.99, 16, 0.5, source="store") == 16


def test_and_one_that_was_too_low() -> None:
    acceptance = Acceptance()
    assert length(acceptance, 0.3, 16, 0.5) == 0
    seen(acceptance, 0.3, right=16)
    assert length(acceptance, 0.3, 16, 0.5) == 16


def test_a_confidence_that_is_not_given_or_is_none_is_taken_for_an_even_one() -> None:
    def cells(*chances: float) -> list[int]:
        return acceptance.cells(["own"], [len(chances)], np.array(chances).tobytes())

    acceptance = Acceptance()
    assert cells(-1.0, np.nan) == cells(0.5, 0.5) != cells(0.45, 0.65)
    assert cells(2.0) == cells(1.0) and acceptance.cells(["a", "b"], [0, 0], b"") == []


def test_a_proposer_may_invent_any_number_of_sources() -> None:
    acceptance = Acceptance()
    for number in range(3 * MOST_SOURCES):
        seen(acceptance, 0.9, right=16, times=1, source=str(number))
    assert length(acceptance, 0.9, 4, 0.1, source="yet another") == 4


def test_the_cost_of_a_row_is_the_slope_of_measured_steps() -> None:
    cost = RowCost()
    assert cost.least(2) == FIRST
    for step in range(4 * COST_STEPS):
        drafted = (step % 4) * 8
        cost.learn(2, drafted, 4, 0.020 + 0.0005 * drafted)
    assert cost.of_a_row(2) == pytest.approx(0.0005)
    assert cost.least(2) == pytest.approx(0.0005 * cost.rate) and LEAST < cost.least(2) < 0.3
    # Of a batch that is much larger nothing was measured.
    assert cost.of_a_row(3) == cost.of_a_row(2) and cost.of_a_row(4) is None


def test_what_a_row_costs_is_known_from_requests_that_come_and_go_and_stays_known_when_they_dont() -> None:
    cost = RowCost()
    for step in range(4 * COST_STEPS):
        requests = 8 + step % 8
        cost.learn(requests, 0, requests, 0.020 + 0.001 * requests)
    assert cost.of_a_row(15) == pytest.approx(0.001)
    for _ in range(20 * COST_STEPS):
        cost.learn(15, 0, 15, 0.035)
    assert cost.of_a_row(9) == pytest.approx(0.001, rel=0.05)


def test_drafts_of_one_length_dont_tell_what_a_row_costs() -> None:
    cost = RowCost()
    for _ in range(100):
        cost.learn(1, 8, 4, 0.02)
    assert cost.of_a_row(1) is None


def test_waiting_that_brings_nothing_is_only_tried_now_and_then() -> None:
    waiting = Waiting()
    assert all(waiting.pays(100.0) for _ in range(3))
    for _ in range(400):
        waiting.learn(0.001, 0)
    tries = [waiting.pays(100.0) for _ in range(2 * Waiting.PROBE)]
    assert sum(tries) == 2
    for _ in range(100):
        waiting.learn(0.001, 1)
    assert all(waiting.pays(100.0) for _ in range(3))
