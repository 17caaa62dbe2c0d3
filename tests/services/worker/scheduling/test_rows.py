"""How a step's rows are shared out among drafts."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.worker.scheduling.rows import Rows, most_for_sure


@pytest.mark.parametrize(
    ("wanted", "rows", "given"),
    [
        ([8, 1], 512, [8, 1]),
        ([1, 8], 9, [1, 8]),
        ([8, 8, 8], 12, [4, 4, 4]),
        # Who needs less than its share leaves the rest to those behind it.
        ([1, 8, 8], 13, [1, 6, 6]),
        ([8, 8], 0, [0, 0]),
        ([], 16, []),
    ],
)
def test_drafts_that_all_fit_stay_whole_and_others_get_their_share(
    wanted: list[int], rows: int, given: list[int]
) -> None:
    shared = Rows([], wanted, rows)
    assert [shared.for_draft(length) for length in wanted] == given
    assert sum(given) <= rows


def test_what_may_be_asked_for_is_as_long_as_the_longest_that_fits() -> None:
    assert Rows([], [8, 1], 512).share == 8
    assert Rows([], [8, 8], 8).share == 4
    assert Rows([], [], 8).share == 0


def test_what_drafts_may_have_for_sure_they_get_beside_any_prompts() -> None:
    chance = random.Random(1)
    whole = 0
    for _ in range(400):
        rows = chance.randint(1, 64)
        running = [
            SimpleNamespace(id=at, computed=0, token_ids=[0] * chance.choice([1, 1, 2, 40]))
            for at in range(chance.randint(0, 6))
        ]
        wanted = [chance.randint(1, 12) for _ in range(chance.randint(0, 5))]
        if sum(wanted) <= most_for_sure(rows, len(running)):
            whole += 1
            shared = Rows(cast(Any, running), wanted, rows)
            assert shared.share == max(wanted, default=0)
            assert [shared.for_draft(length) for length in wanted] == wanted
            # A quarter is left for prompts.
            assert rows - len(running) - sum(wanted) >= rows // 4
    assert 100 < whole < 300
