"""A limit that several streamers keep, each of which hears of the others late."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from services.streamer.choice.growth import HEARD_AFTER, Growth

LIMIT, STREAMERS = 100, 4


def test_it_is_counted_from_the_fewest_of_the_last_second_and_then_forgotten() -> None:
    growth = Growth()
    assert growth.note(5, 10.0) == 0
    assert growth.note(8, 10.2) == 3
    assert growth.note(6, 10.4) == 1
    assert growth.note(9, 10.0 + HEARD_AFTER) == 4
    assert growth.note(9, 10.0 + 2 * HEARD_AFTER) == 0


def test_short_requests_one_after_the_other_are_no_growth() -> None:
    growth = Growth()
    for step in range(1000):
        assert growth.note(1, step * 0.01) <= 1
        growth.note(0, step * 0.01)


def most_held(chance: random.Random, picks: Callable[[], int]) -> int:
    """All that streamers hold at most, where each takes what it may. Each hears what the others held up to HEARD_AFTER
    ago."""
    held, grown = [0] * STREAMERS, [Growth() for _ in range(STREAMERS)]
    told, heard_at, now, most = [0] * STREAMERS, 0.0, 0.0, 0
    announced = list(held)
    for _ in range(20_000):
        now += chance.expovariate(1000)
        if now >= heard_at:
            # What was announced half a period ago is told now.
            told, announced, heard_at = announced, list(held), now + HEARD_AFTER / 2
        one = picks()
        grown[one].note(held[one], now)
        if held[one] and chance.random() < 0.3:
            held[one] -= 1
        elif (
            held[one] + sum(told) - told[one] + (STREAMERS - 1) * grown[one].note(held[one], now) + 1 <= LIMIT
        ):
            held[one] += 1
        grown[one].note(held[one], now)
        most = max(most, sum(held))
    return most


@pytest.mark.parametrize("seed", range(5))
def test_streamers_that_grow_alike_keep_the_limit_nearly(seed: int) -> None:
    chance = random.Random(seed)
    most = most_held(chance, lambda: chance.randrange(STREAMERS))
    assert LIMIT / 2 < most <= LIMIT * 1.1 + STREAMERS


@pytest.mark.parametrize("seed", range(5))
def test_whatever_comes_they_never_hold_twice_of_it_but_for_a_request_each(seed: int) -> None:
    chance = random.Random(seed)
    turns = iter(lambda: chance.randrange(STREAMERS), None)
    current, left = 0, 0

    def in_bursts() -> int:
        nonlocal current, left
        if left == 0:
            current, left = next(turns), chance.randint(1, 300)
        left -= 1
        return current

    assert most_held(chance, in_bursts) <= 2 * LIMIT + STREAMERS
