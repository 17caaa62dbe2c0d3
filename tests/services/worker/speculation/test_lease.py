"""A continuation that is used piece by piece, as long as the text agrees with it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from services.api.drafts import DraftItem
from services.worker.speculation.lease import LONGEST_LEASE, Lease, lease_of

TEXT = [1, 2, 3, 4]


def lease(committed: int, tokens: list[int], ahead: list[int] | None = None, **more: Any) -> Lease | None:
    item = DraftItem(sequence_id=1, committed=committed, tokens=tokens, source="s", **more)
    return lease_of(item, ahead or [], TEXT, "asked")


def left(found: Lease | None) -> list[int] | None:
    return None if found is None else found.next(100)


@pytest.mark.parametrize(
    ("committed", "tokens", "ahead", "of_use"),
    [
        (4, [5, 6], [], [5, 6]),
        # For a place that the text has passed, the way it said, or another.
        (2, [3, 4, 5], [], [5]),
        (2, [3, 9, 5], [], None),
        (2, [3, 4], [], None),
        (0, [1, 2, 3, 4, 5], [], [5]),
        (5, [6], [], None),
        (-1, [0, 1, 2, 3, 4, 5], [], None),
        # Asked ahead of the verdict, and read before it, behind it, and behind another one.
        (6, [7, 8], [5, 6], [5, 6, 7, 8]),
        (3, [4, 5, 6], [3], [5, 6]),
        (3, [4, 5, 6], [9], None),
        (4, [9], [3, 4], [9]),
        (4, [5], [3, 7], None),
        (1, [2], [7, 7, 7], None),
    ],
)
def test_what_of_a_draft_is_of_use_depends_on_the_text_since_it_was_asked_for(
    committed: int, tokens: list[int], ahead: list[int], of_use: list[int] | None
) -> None:
    assert left(lease(committed, tokens, ahead)) == of_use


def test_it_moves_along_with_what_agrees_and_ends_with_what_does_not() -> None:
    found = lease(4, [5, 6, 7, 8, 9])
    assert found is not None and found.follow([5, 6]) and found.next(2) == [7, 8] and found.left == 3
    assert not found.follow([7, 1]) and found.at == 3
    found = lease(4, [5, 6])
    assert found is not None and not found.follow([5, 6, 7]) and found.at == 2


def test_it_has_an_end() -> None:
    found = lease(4, list(range(1000)))
    assert found is not None and found.left == LONGEST_LEASE


def test_claims_that_cannot_be_are_none_and_missing_ones_follow_from_the_match() -> None:
    found = lease(4, [5, 6, 7, 8], chances=[0.5, float("nan"), 7.0, -1.0])
    assert found is not None and found.chances == [0.5, 0.0, 0.0, 0.0]
    short, long = lease(4, [5], match_length=1), lease(4, [5], match_length=20)
    assert short is not None and long is not None and 0 < short.chances[0] < long.chances[0] < 1
    few = lease(4, [5, 6], chances=[0.9])
    assert few is not None and len(few.chances) == 2


def test_what_is_left_is_always_what_was_guessed_behind_the_text() -> None:
    chance = random.Random(1)
    for _ in range(2000):
        guessed = [chance.randrange(3) for _ in range(chance.randint(1, 8))]
        text = [chance.randrange(3) for _ in range(chance.randint(1, 6))]
        begins = chance.randint(0, len(text))
        found = lease_of(DraftItem(sequence_id=1, committed=begins, tokens=guessed, source="s"), [], text, "asked")
        while found is not None:
            assert text[begins:] == guessed[: len(text) - begins] and found.next(99) == guessed[len(text) - begins :]
            more = [chance.randrange(3) for _ in range(chance.randint(1, 3))]
            lives = found.follow(more)
            text += more
            agrees = text[begins:] == guessed[: len(text) - begins]
            assert lives == (agrees and len(text) - begins < len(guessed))
            found = found if lives else None


def test_whether_a_chain_goes_on_is_known_before_the_text_does() -> None:
    chance = random.Random(5)
    went: list[bool] = []
    for _ in range(500):
        tokens = chance.choices(range(2), k=chance.randint(1, 6))
        lease = Lease(tokens, [0.5] * len(tokens), "s", 3, "ahead")
        while True:
            said, at = chance.choices(range(2), k=chance.randint(1, 3)), lease.at
            goes_on = lease.goes_on_with(said)
            assert lease.at == at, "only looked at"
            went.append(goes_on)
            assert lease.follow(said) == goes_on
            if not goes_on:
                break
    assert 20 < sum(went) < len(went) - 20
