"""Prompt lookup: the longest n-gram first, and of its places the last."""

from __future__ import annotations

import pytest
from asking import asks, index, view
from asking import guess as guess_of

from services.api.drafter import MAX_DRAFT_TOKENS
from services.proposer.ngram import NgramDrafter

pytestmark = pytest.mark.usefixtures("each_form")


def guess(tokens: list[int], budget: int = 4, sizes: tuple[int, int] = (2, 5)) -> tuple[list[int], int]:
    draft = guess_of(NgramDrafter(index(sizes=sizes)), view(1, tokens), budget)
    assert draft.source == ("ngram" if draft.tokens else "")
    return draft.tokens, draft.match_length


def test_what_followed_the_same_words_before_is_the_guess() -> None:
    assert guess([1, 2, 3, 4, 5, 9, 1, 2]) == ([3, 4, 5, 9], 2)


def test_a_longer_match_beats_a_more_recent_one() -> None:
    tokens = [7, 1, 2, 3, 50, 51, 8, 2, 3, 60, 61, 7, 1, 2, 3]
    assert guess(tokens, budget=2) == ([50, 51], 4)


def test_of_equally_long_matches_the_most_recent_wins() -> None:
    assert guess([1, 2, 30, 1, 2, 30, 1, 2, 40, 1, 2], budget=1) == ([40], 2)


def test_a_text_that_repeats_itself_is_expected_to_go_on() -> None:
    assert guess([1, 2, 3, 1, 2, 3], budget=7)[0] == [1, 2, 3, 1, 2, 3, 1]
    assert guess([5, 5, 5, 5], budget=3)[0] == [5, 5, 5]


# The last one has the bytes of its end before, but between two tokens.
@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3, 4, 5], [0, 0], [0], [256, 512, 256, 1, 2]])
def test_without_an_earlier_occurrence_there_is_no_guess(tokens: list[int]) -> None:
    assert guess(tokens) == ([], 0)


def test_token_zero_is_not_taken_for_an_empty_place() -> None:
    assert guess([5, 0, 0, 7]) == ([], 0)
    assert guess([0, 7, 1, 0, 0, 7], sizes=(3, 3)) == ([], 0)


@pytest.mark.parametrize("budget", [0, -3])
def test_no_budget_no_draft_and_the_text_is_still_learned(budget: int) -> None:
    drafter, one = NgramDrafter(index()), view(1, [1, 2, 3, 1, 2])
    assert guess_of(drafter, one, budget).tokens == []
    assert guess_of(drafter, one, 1).tokens == [3]


def test_no_draft_is_longer_than_its_budget_or_the_limit_of_all_drafts() -> None:
    tokens = [*range(200), 0, 1]
    assert guess(tokens, budget=10)[0] == list(range(2, 12))
    assert len(guess(tokens, budget=10**6)[0]) == MAX_DRAFT_TOKENS


def test_shortest_and_longest_ngram_are_kept_to() -> None:
    assert guess([1, 2, 3, 9, 2, 3], sizes=(3, 5)) == ([], 0)
    assert guess([1, 2, 3, 9, 1, 2, 3], sizes=(1, 2)) == ([9, 1, 2, 3], 2)
    assert guess([4, 9, 4], budget=1, sizes=(1, 1)) == ([9], 1)


def test_its_chances_are_how_often_the_token_came() -> None:
    draft = guess_of(NgramDrafter(index()), view(1, [1, 2, 3, 4, 1, 2, 5, 6, 1, 2]), 2)
    # 1 2 has come three times, once with 5 behind it; 1 2 5 once, with 6 behind it.
    assert draft.tokens == [5, 6] and draft.confidence == [1 / 3, 1.0]


def test_what_is_ahead_is_part_of_the_text_and_of_what_follows() -> None:
    drafter = NgramDrafter(index())
    one = view(1, [1, 2, 3, 4, 5, 6, 7])
    assert guess_of(drafter, one, 4, [1, 2]).tokens == [3, 4, 5, 6]
    assert guess_of(drafter, one, 4, [6, 7]).tokens == [6, 7, 6, 7]
    assert guess_of(drafter, one, 4).tokens == []


def test_forgotten_sequences_leave_nothing() -> None:
    held = index()
    drafter = NgramDrafter(held)
    drafter.draft(asks([view(n, list(range(100))) for n in range(10)], [4] * 10))
    assert held.stats().memory_bytes > 10_000
    for n in range(12):
        drafter.forget([n])
    assert held.stats().memory_bytes == 0 == len(held._texts)


def test_sequences_do_not_see_each_other() -> None:
    drafter = NgramDrafter(index())
    one, two = view(1, [1, 2, 3, 4]), view(2, [9, 9, 1, 2])
    assert [draft.tokens for draft in drafter.draft(asks([one, two], [4, 4]))] == [[], []]
