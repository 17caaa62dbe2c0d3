"""Nothing in one namespace depends on what another said: not a draft, not a count, not a moment. With `auto`, which
looks at what steps cost and at what came of earlier drafts, in simulated time.

One tenant says X in one world and Y in another: texts that are alike but for the tokens nobody could guess. Then
another asks the same in both, behind halves of X. Through four processes, and all the API shows:
tests/flow/test_two_namespaces.py.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from far_proposer import World
from simulation import Simulation

from services.proposer.fast import compiling
from services.worker.running.mock import CYCLE, FIRST

Heard = list[list[tuple[float, Any]]]
X, Y = 1, 2
# The mock goes on along its cycle.
LAST, NEXT = FIRST + CYCLE - 3, FIRST + CYCLE - 2
HALF, REST = 39, 40
TEXTS = 6


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    compiling.start().join()


def halves(seed: int) -> list[list[int]]:
    chance = random.Random(f"half {seed}")
    return [[*chance.sample(range(1000, 30000), HALF), LAST] for _ in range(TEXTS)]


def secrets(seed: int) -> list[list[int]]:
    """Behind each half what the engine says to it, and then what is secret."""
    chance = random.Random(f"rest {seed}")
    return [[*half, NEXT, *chance.sample(range(1000, 30000), REST), LAST] for half in halves(seed)]


def played(seed: int, namespaces: tuple[str, str] = ("a", "b")) -> tuple[Heard, Simulation]:
    """All that the second tenant hears, and when; what the world looks like afterwards."""
    world = World(1, {}, suffix_decoding_learn_prompts=True, suffix_decoding_max_cached_requests=-1)
    simulation = Simulation("nearly free rows", connect=world.connect)
    first, second = namespaces
    try:
        for _ in range(2):
            simulation.say(secrets(seed), 40, first)
        heard_before = len(simulation.heard)
        for prompts in (halves(X), secrets(X), halves(X)):
            simulation.say(prompts, 60, second)
    finally:
        world.close()
    assert not simulation.client.failed and simulation.client.answered
    return [heard for sequence_id, heard in simulation.heard.items() if sequence_id > heard_before], simulation


def drafted(heard: Heard) -> int:
    return sum(run.drafted for sequence in heard for _, tokens in sequence for run in tokens.runs)


def test_text_of_another_namespace_changes_no_draft_and_no_timing() -> None:
    (in_x, x), (in_y, y) = played(X), played(Y)
    assert in_x == in_y
    assert drafted(in_x) > 100
    assert x.clock.now == y.clock.now
    assert x.controller.counts.ways == y.controller.counts.ways
    assert x.client.asked == y.client.asked


def test_text_of_the_same_namespace_changes_drafts() -> None:
    """Or there would have been nothing to see."""
    (in_x, _), (in_y, _) = played(X, ("a", "a")), played(Y, ("a", "a"))
    assert in_x != in_y
    first = [sequence[1][1].runs for sequence in in_x[:TEXTS]]
    assert any(run.match_length >= HALF for runs in first for run in runs)
