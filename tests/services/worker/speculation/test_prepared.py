"""A draft that is used piece by piece, as long as the text agrees with it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from services.api.drafter import MAX_DRAFT_TOKENS, Draft
from services.worker.speculation.prepared import Prepared, prepare

TEXT = [1, 2, 3, 4]


def prepared(length: int, tokens: list[int], ahead: list[int] | None = None, **more: Any) -> Prepared | None:
    """A draft for a text of `length` tokens, those ahead included."""
    ahead = ahead or []
    return prepare(Draft(tokens, "s", **more), length - len(ahead), ahead, TEXT, "waited")


def left(found: Prepared | None) -> list[int] | None:
    return None if found is None else found.chain(100).tokens


@pytest.mark.parametrize(
    ("length", "tokens", "ahead", "of_use"),
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
def test_the_useful_part_of_a_draft_depends_on_the_text_since_the_request(
    length: int, tokens: list[int], ahead: list[int], of_use: list[int] | None
) -> None:
    assert left(prepared(length, tokens, ahead)) == of_use


def test_it_moves_along_with_what_agrees_and_ends_with_what_does_not() -> None:
    found = prepared(4, [5, 6, 7, 8, 9])
    assert found is not None and found.follow([5, 6]) and found.chain(2).tokens == [7, 8] and found.left == 3
    assert not found.follow([7, 1]) and found.at == 3
    found = prepared(4, [5, 6])
    assert found is not None and not found.follow([5, 6, 7]) and found.at == 2


def test_its_length_is_bounded() -> None:
    found = prepared(4, list(range(1000)))
    assert found is not None and found.left == MAX_DRAFT_TOKENS


def test_an_invalid_confidence_is_0_and_a_missing_one_follows_from_the_match_length() -> None:
    found = prepared(4, [5, 6, 7, 8], confidence=[0.5, float("nan"), 7.0, -1.0])
    assert found is not None and found.confidence == [0.5, 0.0, 0.0, 0.0]
    short, long = prepared(4, [5], match_length=1), prepared(4, [5], match_length=20)
    assert short is not None and long is not None and 0 < short.confidence[0] < long.confidence[0] < 1
    few = prepared(4, [5, 6], confidence=[0.9])
    assert few is not None and len(few.confidence) == 2


def test_the_rest_of_a_draft_always_follows_the_text() -> None:
    chance = random.Random(1)
    for _ in range(2000):
        guessed = [chance.randrange(3) for _ in range(chance.randint(1, 8))]
        text = [chance.randrange(3) for _ in range(chance.randint(1, 6))]
        begins = chance.randint(0, len(text))
        found = prepare(Draft(guessed, "s"), begins, [], text, "waited")
        while found is not None:
            passed = len(text) - begins
            assert text[begins:] == guessed[:passed] and found.chain(99).tokens == guessed[passed:]
            more = [chance.randrange(3) for _ in range(chance.randint(1, 3))]
            lives = found.follow(more)
            text += more
            agrees = text[begins:] == guessed[: len(text) - begins]
            assert lives == (agrees and len(text) - begins < len(guessed))
            found = found if lives else None


def test_probabilities_are_kept_only_for_the_text_they_were_drawn_after() -> None:
    probs = np.eye(3, 9, dtype=np.float32)
    found = prepared(4, [5, 6, 7], probs=probs)
    assert found is not None and (found.chain(2).probs == probs[:2]).all()
    assert found.follow([5]) and (found.chain(9).probs == probs[1:]).all()
    # Drawn behind a guess, or behind an earlier text: certain, as far as verification knows.
    for other in (prepared(6, [7, 8], [5, 6], probs=probs[:2]), prepared(3, [4, 5], probs=probs[:2])):
        assert other is not None and other.probs is None


def test_a_tree_is_cut_down_to_what_follows_the_text() -> None:
    #   5 ─ 6 ─ 7        and behind 5 also 8, behind nothing also 9
    found = prepared(4, [5, 6, 9, 8, 7], parents=[-1, 0, -1, 0, 1], confidence=[0.9, 0.8, 0.3, 0.2, 0.7])
    assert found is not None and found.left == 3
    found.buckets = [1, 2, 3, 4, 5]
    assert found.compared([5, 8, 1]) == ([0, 3], [1, 2])
    assert found.follow([5]) and (found.tokens, found.parents) == ([6, 8, 7], [-1, -1, 0])
    assert found.confidence == [0.8, 0.2, 0.7] and found.buckets == [2, 4, 5]
    draft = found.branched([0, 2])
    assert (draft.tokens, draft.parents) == ([6, 7], []), "a tree without branches is a chain"
    assert not found.follow([1])


def test_branches_that_bring_little_are_left_out() -> None:
    found = prepared(4, [5, 9, 6, 7], parents=[-1, -1, 0, 2])
    assert found is not None
    assert found.best(found.cumulated([0.9, 0.001, 0.9, 0.9]), 4, 9) == [0, 2, 3]
    assert found.best(found.cumulated([0.5, 0.4, 0.9, 0.9]), 4, 9) == [0, 2, 3, 1]
    assert found.best(found.cumulated([0.5, 0.4, 0.9, 0.9]), 4, 1) == [0, 1], "no deeper than there is room"


def test_probabilities_of_a_tree_are_not_kept_for_the_chain_that_is_left_of_it() -> None:
    """Each row belongs to a token, and tokens go."""
    rows = np.eye(3, 10, dtype=np.float32)
    chain = prepared(4, [5, 6, 7], probs=rows)
    assert chain is not None and chain.chain(2).probs.tolist() == rows[:2].tolist()
    for parents in ([-1, 0, -1], [-1, 0, 1]):
        tree = prepared(4, [5, 6, 7], parents=parents, probs=rows)
        assert tree is not None and tree.follow([5]) and tree.chain(1).probs is None
