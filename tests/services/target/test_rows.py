"""How a step's rows are shared out among drafts."""

from __future__ import annotations

import pytest

from services.target.rows import Rows


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
