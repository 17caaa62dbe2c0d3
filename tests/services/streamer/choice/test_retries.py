"""The budget of further attempts. Values in, values out: it is told the time."""

from __future__ import annotations

import random

import pytest

from services.streamer.choice.retries import SHARE, WINDOW, RetryBudget


def taken(budget: RetryBudget, now: float, tries: int = 1000) -> int:
    return sum(budget.again(now) for _ in range(tries))


def test_without_requests_there_is_the_floor_and_no_more_until_the_window_has_passed() -> None:
    budget = RetryBudget(floor=3)
    assert taken(budget, 0.0) == 3
    assert taken(budget, WINDOW - 0.1) == 0
    assert taken(budget, WINDOW) == 3


def test_requests_bring_their_share_for_as_long_as_they_are_in_the_window() -> None:
    budget = RetryBudget(floor=0)
    for _ in range(100):
        budget.first(5.0)
    assert taken(budget, 6.0) == SHARE * 100
    assert taken(budget, 5.0 + WINDOW) == 0


def test_each_refusal_is_told() -> None:
    told: list[None] = []
    budget = RetryBudget(floor=1, refused=lambda: told.append(None))
    assert (budget.again(0.0), budget.again(0.0), budget.again(0.0)) == (True, False, False)
    assert len(told) == 2


@pytest.mark.parametrize("seed", range(20))
def test_in_no_window_are_more_further_attempts_than_the_floor_and_the_share(seed: int) -> None:
    chance = random.Random(seed)
    floor, now = chance.randint(0, 20), 0.0
    budget = RetryBudget(floor)
    first: list[float] = []
    further: list[float] = []
    for _ in range(3000):
        now += chance.expovariate(50)
        if chance.random() < 0.3:
            budget.first(now)
            first.append(now)
        elif budget.again(now):
            further.append(now)
    # Whole seconds are counted, so a window has up to one second less.
    begins = [int(each) - WINDOW + 1 for each in further]
    for at, begin in zip(further, begins, strict=True):
        spent = sum(begin <= each <= at for each in further)
        earned = sum(begin <= each <= at for each in first)
        assert spent <= floor + SHARE * earned


def test_what_it_keeps_is_bounded() -> None:
    budget = RetryBudget()
    for second in range(1000):
        budget.first(float(second))
    assert len(budget._seconds) <= WINDOW
