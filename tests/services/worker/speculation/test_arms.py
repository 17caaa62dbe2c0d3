"""Blocks of steps with and without drafts, whose tokens and times are given."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from services.worker.speculation.arms import BLOCK, SETTLING, Arm, Arms

PLAIN = 0.001


class Step(NamedTuple):
    """Of one sequence: tokens, and the time since the last step."""

    tokens: float
    seconds: float = PLAIN


OFF = Step(1)


def run(
    arms: Arms,
    steps: int,
    on: Callable[[], Step],
    off: Callable[[], Step] = lambda: OFF,
    streams: int = 4,
    plain: float = PLAIN,
) -> list[bool]:
    """Whether each step had drafts."""
    found = []
    for _ in range(steps):
        found.append(arms.drafts(streams, plain))
        step = on() if found[-1] else off()
        arms.stepped(int(step.tokens * streams), step.seconds)
    return found


def share(drafted: list[bool]) -> float:
    return sum(drafted) / len(drafted)


def test_drafts_that_clearly_pay_are_in_every_step() -> None:
    assert all(run(Arms(), 2000, lambda: Step(1.5)))


def test_drafts_that_bring_less_than_they_cost_are_given_up_and_tried_now_and_then() -> None:
    arms = Arms()
    run(arms, 300, lambda: Step(1.25, 1.5 * PLAIN))
    later = run(arms, 10_000, lambda: Step(1.25, 1.5 * PLAIN))
    assert 0 < share(later) < 0.05


def test_drafts_that_bring_a_little_are_kept() -> None:
    """Steps without drafts are tried for a twentieth of the time."""
    arms = Arms()
    run(arms, 300, lambda: Step(1.25, 1.2 * PLAIN))
    assert share(run(arms, 10_000, lambda: Step(1.25, 1.2 * PLAIN))) > 0.9


def test_time_between_the_steps_without_drafts_counts_too() -> None:
    """Drafting seems to lose against the predicted step, but steps without drafts take as long."""
    arms = Arms()
    on, off = (lambda: Step(1.25, 2 * PLAIN)), (lambda: Step(1, 1.9 * PLAIN))
    run(arms, 300, on, off)
    assert share(run(arms, 10_000, on, off)) > 0.9


def test_chance_alone_does_not_end_drafting_that_pays_on_average() -> None:
    """One step in eight brings three tokens, the others one: 1.25 on average, for 1.1 times the time."""
    luck = random.Random(3)
    arms = Arms()
    drafted = run(arms, 40_000, lambda: Step(3 if luck.random() < 0.125 else 1, 1.1 * PLAIN))
    assert share(drafted) > 0.75


def test_drafting_comes_back_when_it_pays_again() -> None:
    arms = Arms()
    run(arms, 1000, lambda: Step(1, 1.5 * PLAIN))
    again = run(arms, 20_000, lambda: Step(2, 1.5 * PLAIN))
    assert all(again[-1000:])


def test_each_class_of_loads_has_its_own_answer() -> None:
    arms = Arms()
    run(arms, 1000, lambda: Step(1, 1.5 * PLAIN), streams=64)
    assert not arms.drafts(64, PLAIN)
    assert arms.drafts(4, PLAIN)
    assert not arms.drafts(100, PLAIN)


def test_steps_of_an_unknown_or_a_mixed_load_teach_nothing() -> None:
    arms = Arms()
    assert all(run(arms, 1000, lambda: Step(1, 1.5 * PLAIN), plain=0.0))
    assert all(run(arms, 1000, lambda: Step(1, 0.0)))


def test_the_first_steps_after_a_change_are_not_counted() -> None:
    """They have no prepared drafts, or still pay for them."""
    arms = Arms()
    drafted = run(arms, 600, lambda: Step(1, 1.5 * PLAIN))
    lengths = [len(each) for each in "".join("d" if each else "." for each in drafted).split("d") if each]
    assert lengths[0] == BLOCK + SETTLING


@pytest.mark.parametrize("count", [8, 32, 200])
def test_the_spread_of_a_speed_is_that_of_its_blocks(count: int) -> None:
    """Against 400 speeds that were really drawn."""
    luck = random.Random(count)

    def drawn() -> Arm:
        arm = Arm()
        for _ in range(count):
            arm.learn(luck.gauss(20, 4), luck.gauss(16, 1))
        return arm

    arms = [drawn() for _ in range(400)]
    speeds = [arm.speed for arm in arms]
    middle = sum(speeds) / len(speeds)
    really = sum((speed - middle) ** 2 for speed in speeds) / len(speeds)
    said = sum(arm.variance for arm in arms) / len(arms)
    assert middle == pytest.approx(1.25, rel=0.02)
    assert said == pytest.approx(really, rel=0.35)
