"""The rows of a step that bring the most tokens per second, against trying everything."""

from __future__ import annotations

import itertools
import random

import pytest

from services.worker.speculation.draft_length import WORTH_IT, cumulated, lengths, modest


def rate(values: list[list[float]], counts: list[int] | tuple[int, ...], certain: float, seconds: list[float]) -> float:
    tokens = certain + sum(sum(value[:count]) for value, count in zip(values, counts, strict=True))
    return tokens / seconds[sum(counts)]


@pytest.mark.parametrize("seed", range(60))
def test_no_other_choice_gives_more_tokens_per_second(seed: int) -> None:
    """Also where steps get dearer in stairs, and where chances are equal."""
    chance = random.Random(seed)
    values = [
        cumulated([chance.choice([0.3, 0.8, 0.95, 1.0, chance.random()]) for _ in range(chance.randint(0, 4))])
        for _ in range(chance.randint(1, 4))
    ]
    rows = sum(map(len, values))
    block = chance.choice([1, 4, 8])
    seconds = [0.01 + chance.choice([0.0001, 0.002]) * -(-(k + 1) // block) * block for k in range(rows + 1)]
    seconds = seconds[: chance.choice([rows + 1, rows // 2 + 1])]
    counts = lengths(values, len(values), seconds)
    assert all(0 <= count <= len(value) for count, value in zip(counts, values, strict=True))
    assert sum(counts) < len(seconds)
    every = itertools.product(*(range(len(value) + 1) for value in values))
    best = max(rate(values, each, len(values), seconds) for each in every if sum(each) < len(seconds))
    mine = rate(values, counts, len(values), seconds)
    assert mine == pytest.approx(best) or (
        sum(counts) == 0 and best < WORTH_IT * rate(values, [0] * len(values), len(values), seconds) * (1 + 1e-9)
    )


def test_free_rows_are_all_taken_and_expensive_ones_are_not() -> None:
    likely = [cumulated([0.9] * 10)]
    assert lengths(likely, 1, [0.01] * 11) == [10]
    assert lengths(likely, 1, [0.01 * (1 + k) for k in range(11)]) == [0]
    assert lengths([cumulated([0.9] * 10), cumulated([0.1] * 10)], 2, [0.01 + 0.002 * k for k in range(21)]) == [5, 0]


@pytest.mark.parametrize(("gain", "rows"), [(0.995, 0), (1.005, 0), (1.02, 1)])
def test_a_row_is_taken_only_if_it_gains_more_than_the_estimates_may_be_wrong(gain: float, rows: int) -> None:
    assert lengths([[0.5]], 1, [0.01, 0.01 * 1.5 / gain]) == [rows]


def test_equal_probabilities_are_shared_by_all_sequences() -> None:
    values = [cumulated([0.9] * 8) for _ in range(4)]
    assert lengths(values, 4, [0.01] * 17) == [4, 4, 4, 4]


def test_a_jump_in_cost_is_accepted_if_the_rows_after_it_pay() -> None:
    stairs = [0.01] * 1 + [0.012] * 8
    assert lengths([cumulated([0.9] * 8)], 1, stairs) == [8]


@pytest.mark.parametrize(
    ("values", "seconds"), [([], [0.01]), ([[]], [0.01]), ([[0.9]], [0.0, 0.0]), ([[0.9], []], [0.01])]
)
def test_without_candidates_nothing_is_chosen(values: list[list[float]], seconds: list[float]) -> None:
    assert lengths(values, 1, seconds) == [0] * len(values)


@pytest.mark.parametrize(
    ("lefts", "rows", "shares"),
    [
        ([9], 4, [4]), ([9, 9], 4, [2, 2]), ([1, 9], 4, [1, 3]), ([9, 9, 9], 2, [1, 1, 0]), ([0, 2], 9, [0, 2]),
        ([], 4, []),
    ],
)  # fmt: skip
def test_few_rows_are_shared_evenly(lefts: list[int], rows: int, shares: list[int]) -> None:
    assert modest(lefts, rows) == shares
