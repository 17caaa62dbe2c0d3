"""What the worker's head costs."""

from __future__ import annotations

import pytest

from services.worker.speculation.head_costs import FIRST_DRAFT, HeadCosts


def test_a_draft_costs_what_it_did_for_as_many_sequences() -> None:
    costs = HeadCosts()
    assert costs.draft(1) == FIRST_DRAFT < costs.draft(16) < 16 * FIRST_DRAFT
    for _ in range(60):
        costs.learn(1, 0, 3, 0.002, 0.001)
        costs.learn(16, 0, 3, 0.008, 0.005)
    assert costs.draft(1) == pytest.approx(0.002, rel=0.05)
    assert costs.draft(20) == pytest.approx(0.008, rel=0.05), "of the same size"
    assert costs.draft(32) > costs.draft(16) and costs.draft(4) < costs.draft(16)
    assert 0.001 / 3 < costs.pass_seconds < 0.001


def test_what_was_read_late_is_no_cost_of_drafts() -> None:
    costs = HeadCosts()
    for _ in range(60):
        costs.learn(1, 0, 2, 0.002, 0.001)
    before = costs.draft(1)
    for _ in range(60):
        costs.learn(1, 200, 2, 0.022, 0.021)
    assert costs.draft(1) == before == pytest.approx(0.002, rel=0.05)
    assert costs.row_seconds == pytest.approx(1e-4, rel=0.05)


def test_a_first_run_that_takes_long_is_no_measure() -> None:
    costs = HeadCosts()
    costs.learn(1, 50, 2, 0.5, 0.4)
    costs.learn(1, 0, 2, 0.5, 0.4)
    assert costs.row_seconds < 2e-4 and costs.draft(1) < 0.002 and costs.pass_seconds < 0.002
