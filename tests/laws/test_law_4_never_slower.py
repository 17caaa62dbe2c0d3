"""Law 4: where guessing doesn't pay, it isn't done. Whatever proposers say or don't: no more than a fiftieth is lost,
and where they are right, what can be won is.

In simulated time (simulation.py): steps cost what is said, and the test asserts on that. With real time: bench.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from simulation import COSTS, Guess, Guesser, Simulation

from services.worker.scheduling.sequence import Sequence
from services.worker.speculation.choosing import Foreseen

LOST_AT_MOST = 1.02


def oracle(world: Simulation, sequence: Sequence, text: list[int], budget: int) -> Guess:
    return Guess(world.runner.follow(sequence, text, budget), [0.98] * budget)


def half_right(world: Simulation, sequence: Sequence, text: list[int], budget: int) -> Guess:
    tokens = [token if world.chance.random() < 0.5 else 99 for token in world.runner.follow(sequence, text, budget)]
    return Guess(tokens, [0.5] * budget)


def garbage(world: Simulation, sequence: Sequence, text: list[int], budget: int) -> Guess:
    return Guess([99] * budget, [0.99] * budget)


def garbage_that_claims_nothing(world: Simulation, sequence: Sequence, text: list[int], budget: int) -> Guess:
    return Guess([99] * budget)


def right_until_trusted(world: Simulation, sequence: Sequence, text: list[int], budget: int) -> Guess:
    """It reads the target's mind: as soon as its claims are believed, it lies."""
    rates = world.record(sequence).source("simulated").rates
    if rates[-1] < 0.6:
        return oracle(world, sequence, text, budget)._replace(chances=[0.999] * budget)
    return Guess([99] * budget, [0.999] * budget)


def right_while_nobody_pays(world: Simulation, sequence: Sequence, text: list[int], budget: int) -> Guess:
    """It is right when the purse is empty, and lies as soon as there is something in it."""
    if not world.record(sequence).solvent:
        return oracle(world, sequence, text, budget)
    return Guess([99] * budget, [0.999] * budget)


def first_token_right(world: Simulation, sequence: Sequence, text: list[int], budget: int) -> Guess:
    return Guess([*world.runner.follow(sequence, text, 1), *[99] * (budget - 1)], [0.99] * budget)


def late(world: Simulation, sequence: Sequence, text: list[int], budget: int) -> Guess:
    return oracle(world, sequence, text, budget)._replace(latency=0.2)


def late_and_wrong(world: Simulation, sequence: Sequence, text: list[int], budget: int) -> Guess:
    return Guess([99] * budget, [0.99] * budget, latency=0.004)


def knows_nothing(world: Simulation, sequence: Sequence, text: list[int], budget: int) -> Guess:
    return Guess([])


def silent(world: Simulation, sequence: Sequence, text: list[int], budget: int) -> None:
    return None


def once_it_repeats_itself(world: Simulation, sequence: Sequence, text: list[int], budget: int) -> Guess:
    """What a search in the text itself would find: nothing while it jumps about."""
    return oracle(world, sequence, text, budget) if len(text) > REPEATS_FROM + 8 else Guess([])


REPEATS_FROM = 300
BAD = [
    garbage, garbage_that_claims_nothing, right_until_trusted, right_while_nobody_pays, first_token_right, late,
    late_and_wrong, knows_nothing, silent,
]  # fmt: skip


def ratio(cost: str, guesser: Guesser, batch: int, tokens: int = 400, requests: int = 1, **more: Any) -> float:
    """Time with guesses to time without; each of the batch's places serves so many requests."""
    naive = Simulation(cost, method="naive", batch=batch, **{**more, "dead": False})
    auto = Simulation(cost, guesser, batch=batch, **more)
    plain, guessed = naive.run(batch * requests, tokens), auto.run(batch * requests, tokens)
    assert naive.texts == auto.texts
    return guessed / plain


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("guesser", BAD)
def test_a_proposer_that_is_no_good_costs_a_fiftieth_at_most(guesser: Guesser, cost: str, batch: int) -> None:
    assert ratio(cost, guesser, batch) <= LOST_AT_MOST


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("cost", COSTS)
def test_nor_does_one_that_is_dead(cost: str, batch: int) -> None:
    assert ratio(cost, silent, batch, dead=True) <= LOST_AT_MOST


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("guesser", [*BAD, half_right])
def test_nor_where_steps_run_elsewhere_and_answers_are_waited_for_meanwhile(guesser: Guesser, batch: int) -> None:
    assert ratio("nearly free rows", guesser, batch, elsewhere=True) <= LOST_AT_MOST


@pytest.mark.parametrize("batch", [1, 4])
def test_there_one_that_is_right_costs_nothing_between_steps(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was thought of while a step ran is what the next one verifies."""
    came: list[bool] = []
    is_of = Foreseen.is_of
    monkeypatch.setattr(Foreseen, "is_of", lambda *given: came.append(is_of(*given)) or came[-1])
    assert ratio("a fast engine", oracle, batch, elsewhere=True) <= ratio("a fast engine", oracle, batch)
    assert len(came) > 10 and sum(came) > 0.9 * len(came)
    # And where texts go another way, it is thought of anew.
    came.clear()
    assert ratio("dear rows", half_right, batch, elsewhere=True) <= LOST_AT_MOST
    assert 0 < sum(came) < len(came)


@pytest.mark.parametrize("guesser", [garbage, right_until_trusted, late, silent])
def test_nor_where_every_request_is_a_stranger(guesser: Guesser) -> None:
    """Without a namespace each learns for itself, anew."""
    assert ratio("nearly free rows", guesser, 4, tokens=200, requests=4, namespace="") <= LOST_AT_MOST


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("cost", COSTS)
def test_an_honest_proposer_that_is_half_right_never_costs_much(cost: str, batch: int) -> None:
    assert ratio(cost, half_right, batch, tokens=200, requests=8) <= LOST_AT_MOST


@pytest.mark.parametrize(
    ("cost", "batch", "most"),
    [
        ("nearly free rows", 1, 0.06), ("nearly free rows", 4, 0.1), ("nearly free rows", 16, 0.25),
        ("dear rows", 1, 0.3), ("dear rows", 4, 0.6), ("dear rows", 16, 0.9),
        ("rows in blocks of eight", 1, 0.1), ("rows in blocks of eight", 4, 0.25), ("rows in blocks of eight", 16, 0.6),
        ("a fast engine", 1, 0.1), ("a fast engine", 4, 0.15), ("a fast engine", 16, 0.4),
    ],
)  # fmt: skip
def test_one_that_is_right_is_believed_as_far_as_rows_are_worth_it(cost: str, batch: int, most: float) -> None:
    assert ratio(cost, oracle, batch) <= most


def test_one_that_seldom_knows_something_is_asked_all_the_same() -> None:
    """Six tokens are right in one answer of ten, else none. A question takes an eighth of a step, so it pays; many
    fruitless ones in a row are to be expected."""

    def seldom(seed: int) -> Guesser:
        def guesser(world: Simulation, sequence: Sequence, text: list[int], budget: int) -> Guess:
            knows = random.Random(1009 * len(text) + seed).random() < 0.1
            return Guess(world.runner.follow(sequence, text, 6) if knows else [99], latency=70e-6)

        return guesser

    times = [ratio("a fast engine", seldom(seed), 1, tokens=500, requests=4) for seed in range(8)]
    assert sum(times) / len(times) <= 0.89


@pytest.mark.parametrize("cost", COSTS)
def test_one_that_was_right_and_has_nothing_more_to_say_is_soon_asked_no_more(cost: str) -> None:
    """What is hoped of it goes with what it brought."""
    naive, auto = Simulation(cost, method="naive"), Simulation(cost, oracle)
    for world in naive, auto:
        world.run(1, 300)
    auto.guesser = knows_nothing
    assert auto.run(1, 1000) <= LOST_AT_MOST * naive.run(1, 1000)


def test_where_half_of_what_it_says_stands_short_drafts_are_verified() -> None:
    assert ratio("nearly free rows", half_right, 1) <= 0.65
    assert ratio("dear rows", half_right, 1) <= 0.9


@pytest.mark.parametrize("cost", COSTS)
def test_a_text_that_begins_to_repeat_itself_is_noticed_within_a_few_dozen_steps(cost: str) -> None:
    world = Simulation(cost, once_it_repeats_itself, stays=lambda position: position >= REPEATS_FROM)
    world.run(1, 1000)
    # Of the 720 tokens that can be guessed most are.
    assert world.steps < REPEATS_FROM + 100
    assert world.link.missed == 0


def test_a_text_that_never_repeats_itself_is_asked_about_now_and_then() -> None:
    world = Simulation("a fast engine", knows_nothing, stays=lambda position: False)
    world.run(1, 1000)
    assert 5 < world.link.asked < 150


def test_a_proposer_that_stopped_is_waited_for_a_few_times_and_then_only_probed() -> None:
    world = Simulation("nearly free rows", oracle)
    world.run(1, 200)
    world.guesser = silent
    missed, asked, began = world.link.missed, world.link.asked, world.clock.now
    world.run(4, 1000)
    assert world.link.gave_up
    # Questions until it was given up, and a probe each half second.
    assert world.link.asked - asked < 40 + 2 * (world.clock.now - began) + 1
    assert world.scheduler.drafting.counts.asking_seconds["asked"] < 0.1
    world.guesser = oracle
    before = world.steps
    world.run(1, 1000)
    assert not world.link.gave_up and world.steps - before < 300
    assert world.link.missed > missed
