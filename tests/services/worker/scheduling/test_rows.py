"""How a step's rows are shared out among prompts, and kept for drafts."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.worker.scheduling.rows import most_for_drafts, share_chunks, wanted_rows


def prompts(*missing: int) -> dict[int, int]:
    """Of prompts with so many tokens to compute: the rows beyond the first."""
    return {id: each - 1 for id, each in enumerate(missing)}


@pytest.mark.parametrize(
    ("missing", "rows", "given"),
    [
        ([9], 100, [8]),
        ([100], 12, [12]),
        # In order; a quarter goes to the shortest of those left over.
        ([100, 50, 9], 12, [9, 0, 3]),
        ([5, 100, 9], 12, [4, 5, 3]),
        # What that one leaves goes to the next.
        ([100, 50, 2], 12, [9, 2, 1]),
        ([3, 3], 100, [2, 2]),
        ([3, 3], 0, [0, 0]),
        ([1, 5], 3, [0, 3]),
    ],
)
def test_prompts_get_their_rows_in_order_and_short_ones_pass(missing: list[int], rows: int, given: list[int]) -> None:
    assert list(share_chunks(prompts(*missing), rows).values()) == given


@pytest.mark.parametrize(
    ("missing", "given"),
    [
        ([50, 50], [49, 0]),
        # Three fill the step.
        ([9, 9, 50, 9], [8, 8, 49, 0]),
        ([9, 9], [8, 8]),
        # None ends: the last quarter is for the shortest.
        ([200, 300, 50], [75, 0, 25]),
        # It had its rows before the shorter one, and ends.
        ([70, 20], [69, 0]),
    ],
)
def test_a_step_in_which_a_prompt_ends_takes_no_more_of_others(missing: list[int], given: list[int]) -> None:
    assert list(share_chunks(prompts(*missing), 100, enough=40).values()) == given


def test_no_row_is_given_twice_and_none_is_left_where_it_is_wanted() -> None:
    chance = random.Random(1)
    for _ in range(400):
        missing = [chance.choice([1, 2, 40, chance.randint(1, 90)]) for _ in range(chance.randint(1, 6))]
        rows = chance.randint(0, 100)
        given = share_chunks(prompts(*missing), rows)
        assert sum(given.values()) == min(rows, sum(missing) - len(missing))
        assert all(0 <= given[id] < each for id, each in enumerate(missing))


def test_prompts_that_are_scored_share_the_rows_that_may_have_logits() -> None:
    lengths = {"a": (50, True), "b": (9, False), "c": (20, True), "d": (5, True)}
    running = [
        cast(Any, SimpleNamespace(sequence_id=sequence_id, longest_chunk=length, scores=scores))
        for sequence_id, (length, scores) in lengths.items()
    ]
    assert wanted_rows(running, 60) == {"a": 49, "b": 8, "c": 11, "d": 0}


def test_while_prompts_are_computed_a_quarter_of_the_rows_is_not_for_drafts() -> None:
    assert [most_for_drafts(rows, 4) for rows in (64, 16, 5, 4)] == [44, 8, 0, 0]
