"""When a text has said its last tokens before."""

from __future__ import annotations

import pytest

from services.worker.speculation.repeats import MOST, Repeats


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        ([], False),
        ([1, 2], False),
        ([1, 2, 3], False),
        ([1, 1, 1, 1], True),
        ([1, 2, 3, 9, 1, 2, 3], True),
        ([1, 2, 3, 9, 1, 2, 4], False),
        ([1, 2, 3, 1, 2, 3, 4], False),
    ],
)
def test_looked_at_once_or_token_by_token(text: list[int], repeats: bool) -> None:
    assert Repeats().look(text) == repeats
    one_by_one = Repeats()
    for end in range(len(text)):
        one_by_one.look(text[:end])
    assert one_by_one.look(text) == one_by_one.look(text) == repeats


def test_what_came_while_nobody_looked_is_known() -> None:
    repeats = Repeats()
    assert not repeats.look([1, 2, 3])
    assert not repeats.look([1, 2, 3, 4, 5, 6])
    assert repeats.look([1, 2, 3, 4, 5, 6, 3, 4, 5])


def test_of_a_long_prompt_the_end_is_read() -> None:
    text = [*range(MOST), 7, 8, 9]
    assert Repeats().look(text)
    assert not Repeats().look([*range(10), *range(MOST), 1, 2, 3, 10**6, 1, 2, 4])
