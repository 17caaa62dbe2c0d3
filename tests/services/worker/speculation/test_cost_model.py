"""What a step will cost, learned from steps with known costs."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from services.worker.speculation.cost_model import CONTEXT, KEPT, ROWS, StepTime

Cost = Callable[[int, int], float]


def linear(rows: int, context: int) -> float:
    return 0.010 + 0.0004 * rows + 1e-6 * context


def stairs(rows: int, context: int) -> float:
    """Rows in blocks of 16, and attention that costs rows times context."""
    return 0.008 + 0.003 * -(-rows // 16) + 2e-9 * rows * context + 5e-7 * context


def taught(cost: Cost, steps: int = 3000, noise: float = 0.05, outliers: float = 0.0, seed: int = 1) -> StepTime:
    chance, model = random.Random(seed), StepTime()
    for _ in range(steps):
        rows = chance.choice([1, 1, 2, 4, 8, 9, 16, 16, 30, 64, 128, 512])
        context = rows * chance.choice([20, 200, 800, 3000])
        seconds = cost(rows, context) * chance.uniform(1 - noise, 1 + noise)
        model.learn(rows, context, seconds * chance.uniform(5, 50) if chance.random() < outliers else seconds)
    return model


def off(model: StepTime, cost: Cost, rows: int, context: int) -> float:
    return abs(model.predict(rows, context) / cost(rows, context) - 1)


def test_nothing_is_known_before_the_first_step() -> None:
    assert StepTime().predict(1, 100) == 0.0


def test_one_step_is_enough_for_a_first_answer() -> None:
    model = StepTime()
    model.learn(4, 400, 0.02)
    assert model.predict(4, 400) == pytest.approx(0.02)
    assert model.predict(1, 100) <= 0.02 <= model.predict(64, 6400)


@pytest.mark.parametrize("cost", [linear, stairs])
def test_it_predicts_what_it_has_seen(cost: Cost) -> None:
    model = taught(cost)
    for rows in (1, 8, 16, 64, 512):
        for each in (50, 500, 2000):
            assert off(model, cost, rows, rows * each) < 0.12, (rows, each)


def test_between_measurements_it_interpolates_linearly() -> None:
    model = taught(linear)
    for rows, context in ((3, 900), (12, 5000), (100, 40_000), (300, 100_000)):
        assert off(model, linear, rows, context) < 0.12


@pytest.mark.parametrize("cost", [linear, stairs])
def test_steps_that_were_descheduled_do_not_count(cost: Cost) -> None:
    model = taught(cost, outliers=0.15)
    for rows in (1, 8, 16, 64, 512):
        assert off(model, cost, rows, rows * 500) < 0.15


def test_a_burst_of_slow_steps_leaves_the_model_unchanged() -> None:
    model = taught(linear, noise=0.0)
    before = model.predict(8, 1600)
    for _ in range(KEPT // 2):
        model.learn(8, 1600, 1.0)
    assert model.predict(8, 1600) == pytest.approx(before, rel=0.02)


def test_a_slow_step_of_a_kind_never_seen_does_not_outweigh_all_others() -> None:
    model = taught(linear, noise=0.0)
    model.learn(8, 4000, 0.2)
    assert off(model, linear, 8, 1600) < 0.25


def test_a_machine_that_became_slower_is_followed() -> None:
    model, chance = taught(linear), random.Random(2)
    for _ in range(400):
        rows = chance.choice([1, 8, 16])
        model.learn(rows, rows * 500, 3 * linear(rows, rows * 500))
    for rows in (1, 8, 16):
        assert model.predict(rows, rows * 500) / linear(rows, rows * 500) == pytest.approx(3.0, rel=0.2)


def test_a_machine_that_became_faster_again_is_followed() -> None:
    model = StepTime()
    for factor in (1.0, 4.0, 1.0):
        for step in range(600):
            rows = (1, 8, 16)[step % 3]
            model.learn(rows, rows * 700, factor * linear(rows, rows * 700))
    for rows in (1, 8, 16):
        assert off(model, linear, rows, rows * 700) < 0.1


@pytest.mark.parametrize("seed", range(8))
def test_more_rows_and_more_context_never_cost_less_whatever_was_measured(seed: int) -> None:
    chance, model = random.Random(seed), StepTime()
    for _ in range(chance.choice([1, 5, 60, 1000])):
        model.learn(chance.choice([1, 2, 3, 8, 70, 600]), chance.randrange(100_000), chance.expovariate(50))
    for context in (0, 100, 10_000, 1_000_000):
        costs = [model.predict(rows, context) for rows in range(1, 1200, 3)]
        assert costs == sorted(costs) and costs[0] >= 0
    for rows in (1, 5, 64, 5000):
        costs = [model.predict(rows, context) for context in range(0, 200_000, 5000)]
        assert costs == sorted(costs)


def test_the_costs_of_context_and_of_rows_are_separated() -> None:
    """A single stream whose text grows: a longer text is dearer, and a row more isn't."""
    model = StepTime()
    for length in range(10, 6000):
        model.learn(1, length, 0.01 + 2e-6 * length)
    assert model.predict(1, 100) == pytest.approx(0.0102, rel=0.1)
    assert model.predict(1, 8000) == pytest.approx(0.026, rel=0.1)


def test_its_memory_is_bounded() -> None:
    model, chance = StepTime(), random.Random(0)
    for _ in range(20_000):
        model.learn(chance.randrange(1, 70_000), chance.randrange(2_000_000), 0.01)
    assert len(model._cells) <= (len(ROWS) + 1) * (len(CONTEXT) + 1)
    assert all(len(cell.steps) <= KEPT for cell in model._cells.values())


def test_a_curve_has_the_prediction_for_each_number_of_rows() -> None:
    one_class = StepTime()
    one_class.learn(20, 400, 0.02)
    for model in (taught(linear), taught(stairs), one_class):
        for rows, context in ((1, 500), (8, 4000), (100, 20_000)):
            said = [model.predict(each, context) for each in range(rows, rows + 65)]
            assert model.curve(rows, 64, context) == pytest.approx(said)
    assert StepTime().curve(1, 64, 100) == []


def test_rows_below_the_smallest_step_that_was_seen_or_beyond_the_only_one_are_not_free() -> None:
    model = StepTime()
    model.learn(20, 400, 0.02)
    curve = model.curve(4, 36, 400)
    assert curve == pytest.approx([0.001 * (4 + k) for k in range(37)])
    assert (model.least_rows, model.most_rows) == (20, 20)
