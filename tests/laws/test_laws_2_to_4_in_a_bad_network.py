"""Laws 2, 3 and 4 with everything between a worker and its proposer gone wrong: messages late, lost, twice, out of
order, with other bytes, a proposer that lies or starts anew; all by seed, in simulated time.

Real are the engine, the scheduler, the controller, the client, the link, the nodes of both sides, and the proposer;
simulated are time, step costs and the network (tests/mesh_doubles/memory.py). Nothing fails, no token
changes, and after a start the overhead is at most 2 %. With real processes: tests/flow, bench faults.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import pytest
from far_proposer import Lie, World, honest
from simulation import COSTS, DEADLINE, Simulation

from services.api.drafts import PlacedDraft
from services.proposer.fast import compiling

LOST_AT_MOST = 1.02
NETWORKS: dict[str, dict[str, float]] = {
    "well": {},
    "slow": {"delay": 0.004},
    "too slow": {"delay": 0.2},
    "as late as is waited for": {"delay": DEADLINE, "reorder": 0.5, "jitter": 0.002},
    "lossy": {"drop": 0.2},
    "hardly there": {"drop": 0.95},
    "twice and out of order": {"duplicate": 0.4, "reorder": 0.5, "jitter": 0.03},
    "damaged": {"damage": 0.3},
    "nothing whole": {"damage": 1.0},
    "all of it": {"delay": 0.001, "drop": 0.1, "duplicate": 0.1, "reorder": 0.2, "jitter": 0.02, "damage": 0.1},
}


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    compiling.start().join()


# Lies ------------------------------------------------------------------------------------------------------------


def with_draft(placed: PlacedDraft, **other: Any) -> list[PlacedDraft]:
    return [placed._replace(draft=placed.draft._replace(**other))]


def sure_of_nonsense(chance: random.Random, placed: PlacedDraft) -> list[PlacedDraft]:
    return with_draft(placed, tokens=[99] * 64, confidence=[0.999] * 64, match_length=64)


def anything(chance: random.Random, placed: PlacedDraft) -> list[PlacedDraft]:
    """Wrong in one way or another; now and then right, and surer than it may be."""
    tokens, sequence_id = placed.draft.tokens, placed.sequence_id
    return chance.choice(
        [
            with_draft(placed, confidence=[1.0] * len(tokens)),
            with_draft(placed, tokens=tokens[::-1]),
            with_draft(placed, tokens=[99] * len(tokens)),
            with_draft(placed, tokens=[*tokens, 10**9]),
            with_draft(placed, tokens=[-1, *tokens]),
            with_draft(placed, tokens=tokens * 50),
            with_draft(placed, tokens=tokens[:4], confidence=[float("nan"), -1.0, 2.0, float("inf")]),
            [placed._replace(length=placed.length + chance.choice((-2, -1, 1, 2, 2**40)))],
            [placed, placed._replace(sequence_id=sequence_id + 1), placed._replace(sequence_id=-(2**60))],
            with_draft(placed, parents=[7, -9, 2]),
            with_draft(placed, source="?" * 5000, match_length=-(2**40)),
            [placed, placed],
            [],
        ]
    )


def ran(simulation: Simulation, batch: int) -> float:
    """Seconds, after a start."""
    simulation.run(batch, 100)
    return simulation.run(batch * 2, 300)


@cache
def plain(cost: str, batch: int, stays: Callable[[int], bool]) -> tuple[float, dict[int, list[int]]]:
    """Seconds without a proposer, and the texts."""
    naive = Simulation(cost, method="naive", batch=batch, stays=stays)
    return ran(naive, batch), naive.texts


def compared(world: World, cost: str, batch: int, stays: Callable[[int], bool]) -> tuple[float, Simulation]:
    """Time with this proposer to time without any, after a start; the texts are the same, and all requests finish."""
    auto = Simulation(cost, batch=batch, stays=stays, connect=world.connect)
    try:
        drafted = ran(auto, batch)
    finally:
        world.close()
    seconds, texts = plain(cost, batch, stays)
    assert auto.texts == texts
    return drafted / seconds, auto


def always(position: int) -> bool:
    return True


def half_the_time(position: int) -> bool:
    return position // 60 % 2 == 0


def never(position: int) -> bool:
    return False


STAYS, BATCHES = (always, half_the_time, never), (1, 4, 16)


# Of the fast tests, every second pair.
PAIRS = [
    pytest.param(faults, lie, 1, marks=[pytest.mark.slow] * (place % 2))
    for place, (faults, lie) in enumerate(product(NETWORKS, (honest, anything, sure_of_nonsense)))
]


@pytest.mark.parametrize(
    ("faults", "lie", "seed"), [*PAIRS, *(pytest.param(*each.values[:2], 2, marks=pytest.mark.slow) for each in PAIRS)]
)
def test_nothing_fails_no_token_changes_and_it_is_never_slower(faults: str, lie: Lie, seed: int) -> None:
    chance = random.Random(f"{faults} {lie.__name__} {seed}")
    line, column = chance.randrange(len(COSTS)), chance.randrange(len(BATCHES))
    # Each way to stay with each cost and each batch.
    cost, batch, stays = list(COSTS)[line], BATCHES[column], STAYS[(line + column) % len(STAYS)]
    world = World(seed, NETWORKS[faults], lie, dies_every=chance.choice((0, 0, 40)))
    ratio, _ = compared(world, cost, batch, stays)
    assert ratio <= LOST_AT_MOST


@pytest.mark.parametrize("batch", [4, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 16))])
@pytest.mark.parametrize("lie", [honest, anything])
def test_a_proposer_that_keeps_dying_makes_nothing_slower(lie: Lie, batch: int) -> None:
    world = World(5, NETWORKS["all of it"], lie, dies_every=7)
    ratio, _ = compared(world, "nearly free rows", batch, half_the_time)
    assert ratio <= LOST_AT_MOST
    assert world.lives > 3


def test_through_a_good_network_drafts_save_much_time() -> None:
    """Or all of the above would be easy."""
    ratio, auto = compared(World(1, {}), "nearly free rows", 4, always)
    assert ratio < 0.5
    assert auto.client.answered and not auto.client.failed


@pytest.mark.parametrize("faults", ["lossy", "damaged", "twice and out of order", "all of it"])
def test_through_a_bad_network_drafts_still_save_time(faults: str) -> None:
    world = World(1, NETWORKS[faults])
    ratio, auto = compared(world, "nearly free rows", 4, always)
    assert ratio < 0.9
    assert auto.client.missed or world.network.dropped + world.network.damaged == 0


def test_a_seed_determines_the_simulation() -> None:
    seen = [compared(World(3, NETWORKS["all of it"], anything), "dear rows", 4, half_the_time) for _ in range(2)]
    assert seen[0][0] == seen[1][0]
    assert seen[0][1].client.answered == seen[1][1].client.answered
