"""Law 4: where drafting doesn't pay, it isn't done. Whatever proposers draft or don't: the overhead is at most 2 %, and
where their drafts are good, they are used.

In simulated time (simulation.py): steps cost what is said, and the test asserts on that. With real time: bench.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
from simulation import COSTS, SEND, Guess, Guesser, Simulation

from services.worker.scheduling.sequence import Sequence

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


def right_when_only_probed(world: Simulation, sequence: Sequence, text: list[int], budget: int) -> Guess:
    """Right as long as asking is expected not to pay, so that only probes see it, and wrong as soon as it does."""
    bounds = [benefit.upper for benefit in world.acceptance(sequence).benefit.values()]
    if all(upper is not None and upper < SEND for upper in bounds):
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
BAD = [garbage, garbage_that_claims_nothing, first_token_right, late, late_and_wrong, knows_nothing, silent]
BATCHES = [1, 4, 16]


def each_pair(guessers: list[Guesser]) -> list[Any]:
    """Each guesser with every cost and with every batch, and with several guessers each cost with every batch; what is
    left of the grid is slow."""
    return [
        pytest.param(guesser, cost, batch, marks=() if (place + line) % 3 == BATCHES.index(batch) else pytest.mark.slow)
        for place, guesser in enumerate(guessers)
        for line, cost in enumerate(COSTS)
        for batch in BATCHES
    ]


@cache
def plain(cost: str, batch: int, runs: tuple[int, ...], **more: Any) -> tuple[list[float], dict[int, list[int]]]:
    """Seconds of each run without drafts, each of `batch` requests of so many tokens, and the texts."""
    world = Simulation(cost, method="naive", batch=batch, **more)
    return [world.run(batch, tokens) for tokens in runs], world.texts


def ratios(
    cost: str, guesser: Guesser, batch: int, runs: tuple[int, ...], dead: bool = False, **more: Any
) -> list[float]:
    """Of each run, the time with drafts to the time without."""
    naive, texts = plain(cost, batch, runs, **more)
    auto = Simulation(cost, guesser, batch=batch, dead=dead, **more)
    drafted = [auto.run(batch, tokens) for tokens in runs]
    assert auto.texts == texts
    return [mine / others for mine, others in zip(drafted, naive, strict=True)]


def ratio(cost: str, guesser: Guesser, batch: int, tokens: int = 400, **more: Any) -> float:
    return ratios(cost, guesser, batch, (tokens,), **more)[0]


def after_a_start(cost: str, guesser: Guesser, batch: int, **more: Any) -> float:
    """Three short runs: the first draft that comes in time is believed as far as it says, and that step may be long."""
    return ratios(cost, guesser, batch, (60, 60, 60, 300), **more)[-1]


@pytest.mark.parametrize(("guesser", "cost", "batch"), each_pair(BAD))
def test_useless_drafts_cost_2_percent_at_most(guesser: Guesser, cost: str, batch: int) -> None:
    assert after_a_start(cost, guesser, batch) <= LOST_AT_MOST


@pytest.mark.parametrize(("guesser", "cost", "batch"), each_pair([silent]))
def test_a_dead_proposer_costs_2_percent_at_most(guesser: Guesser, cost: str, batch: int) -> None:
    assert ratio(cost, guesser, batch, dead=True) <= LOST_AT_MOST


@pytest.mark.parametrize(("guesser", "batch"), list(zip([*BAD, half_right], [1, 16] * 4, strict=True)))
def test_useless_drafts_cost_2_percent_at_most_where_a_gpu_runs_the_steps(guesser: Guesser, batch: int) -> None:
    assert after_a_start("nearly free rows", guesser, batch, gpu=True) <= LOST_AT_MOST


@pytest.mark.parametrize(("guesser", "cost", "batch"), each_pair([right_when_only_probed]))
def test_a_proposer_that_lies_once_its_drafts_are_used_costs_no_more(
    guesser: Guesser, cost: str, batch: int
) -> None:
    assert ratios(cost, guesser, batch, (100, 1000))[1] <= LOST_AT_MOST


@pytest.mark.parametrize("batch", [1, 4])
def test_on_a_gpu_a_request_sent_while_a_step_runs_takes_no_time_of_it(batch: int) -> None:
    assert ratio("a fast engine", oracle, batch, gpu=True) <= ratio("a fast engine", oracle, batch)


@pytest.mark.parametrize("guesser", [garbage, late, silent])
def test_useless_drafts_cost_2_percent_at_most_without_namespaces(guesser: Guesser) -> None:
    """Then each learns for itself, anew."""
    assert ratios("nearly free rows", guesser, 4, (200, 600), namespace="")[1] <= LOST_AT_MOST


@pytest.mark.parametrize(("guesser", "cost", "batch"), each_pair([half_right]))
def test_drafts_of_which_half_is_right_never_cost_much(guesser: Guesser, cost: str, batch: int) -> None:
    assert ratios(cost, guesser, batch, (100, 600))[1] <= LOST_AT_MOST


@pytest.mark.parametrize(
    ("cost", "batch", "most"),
    [
        ("nearly free rows", 1, 0.06), ("nearly free rows", 4, 0.1), ("nearly free rows", 16, 0.25),
        ("dear rows", 1, 0.3), ("dear rows", 4, 0.6), ("dear rows", 16, 0.9),
        ("rows in blocks of eight", 1, 0.1), ("rows in blocks of eight", 4, 0.25), ("rows in blocks of eight", 16, 0.6),
        ("a fast engine", 1, 0.1), ("a fast engine", 4, 0.15), ("a fast engine", 16, 0.4),
    ],
)  # fmt: skip
def test_good_drafts_are_faster_in_every_cost_profile(cost: str, batch: int, most: float) -> None:
    assert ratio(cost, oracle, batch) <= most


def test_a_proposer_with_rare_useful_drafts_is_still_asked() -> None:
    """Six tokens are right in one answer of ten, else none. A request takes an eighth of a step, so it pays; many
    fruitless ones in a row are to be expected."""

    def seldom(seed: int) -> Guesser:
        def guesser(world: Simulation, sequence: Sequence, text: list[int], budget: int) -> Guess:
            knows = random.Random(1009 * len(text) + seed).random() < 0.1
            return Guess(world.runner.follow(sequence, text, 6) if knows else [99], latency=70e-6)

        return guesser

    times = [ratio("a fast engine", seldom(seed), 1, tokens=2000) for seed in range(4)]
    assert sum(times) / len(times) <= 0.89


@pytest.mark.parametrize("cost", COSTS)
def test_a_proposer_whose_drafts_stop_being_useful_is_soon_not_asked(cost: str) -> None:
    naive, auto = Simulation(cost, method="naive"), Simulation(cost, oracle)
    for world in naive, auto:
        world.run(1, 300)
    auto.guesser = knows_nothing
    assert auto.run(1, 1000) <= LOST_AT_MOST * naive.run(1, 1000)


def test_where_half_of_the_drafted_tokens_are_accepted_short_drafts_are_verified() -> None:
    assert ratio("nearly free rows", half_right, 1) <= 0.65
    assert ratio("dear rows", half_right, 1) <= 0.9


@pytest.mark.parametrize("cost", COSTS)
def test_a_text_that_begins_to_repeat_itself_is_noticed_within_a_few_dozen_steps(cost: str) -> None:
    world = Simulation(cost, once_it_repeats_itself, stays=lambda position: position >= REPEATS_FROM)
    world.run(1, 1000)
    # Of the 720 tokens that can be guessed most are.
    assert world.steps < REPEATS_FROM + 100
    assert world.client.missed == 0


def test_a_text_that_never_repeats_itself_is_asked_about_now_and_then() -> None:
    world = Simulation("a fast engine", knows_nothing, stays=lambda position: False)
    world.run(1, 1000)
    assert 5 < world.client.asked < 150


def test_a_stopped_proposer_is_waited_for_a_few_times_and_then_only_probed() -> None:
    world = Simulation("nearly free rows", oracle)
    world.run(1, 200)
    world.stopped = True
    missed, asked, began = world.client.missed, world.client.asked, world.clock.now
    world.run(4, 1000)
    assert world.client.breaker.open
    # Requests until it was given up, and a probe each half second.
    assert world.client.asked - asked < 40 + 2 * (world.clock.now - began) + 1
    assert world.controller.counts.asking_seconds["waited"] < 0.1
    world.stopped = False
    before = world.steps
    world.run(1, 1000)
    assert not world.client.breaker.open and world.steps - before < 300
    assert world.client.missed > missed
