"""Prompt lookup: the longest n-gram first, the most recent occurrence, one entry per token and n."""

from __future__ import annotations

import random
from array import array

import pytest
from asking import asks

from services.proposer.draft import MAX_DRAFT_TOKENS
from services.proposer.ngram import NgramIndex, NgramProposer, continuation
from services.proposer.proposer import View


def guess(tokens: list[int], budget: int = 4, sizes: tuple[int, int] = (2, 5)) -> tuple[list[int], int]:
    [draft] = NgramProposer(*sizes).propose(asks([View(1, array("i", tokens))], [budget]))
    return draft.tokens, draft.match_length


def obvious_find(tokens: list[int], min_size: int, max_size: int) -> tuple[int, int]:
    """The definition, by looking everywhere."""
    for size in range(max_size, min_size - 1, -1):
        end = tokens[len(tokens) - size :]
        for position in range(len(tokens) - 1, size - 1, -1):
            if size < len(tokens) and tokens[position - size : position] == end:
                return position, size
    return -1, 0


def test_what_followed_the_same_words_before_is_the_guess() -> None:
    assert guess([1, 2, 3, 4, 5, 9, 1, 2]) == ([3, 4, 5, 9], 2)


def test_a_longer_match_beats_a_more_recent_one() -> None:
    tokens = [7, 1, 2, 3, 50, 51, 8, 2, 3, 60, 61, 7, 1, 2, 3]
    assert guess(tokens, budget=2) == ([50, 51], 4)


def test_of_equally_long_matches_the_most_recent_wins() -> None:
    assert guess([1, 2, 30, 1, 2, 40, 1, 2], budget=1) == ([40], 2)


def test_a_text_that_repeats_itself_is_expected_to_go_on() -> None:
    assert guess([1, 2, 3, 1, 2, 3], budget=7)[0] == [1, 2, 3, 1, 2, 3, 1]
    assert guess([5, 5, 5, 5], budget=3)[0] == [5, 5, 5]


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3, 4, 5], [0, 0], [0]])
def test_without_an_earlier_occurrence_there_is_no_guess(tokens: list[int]) -> None:
    assert guess(tokens) == ([], 0)


def test_token_zero_is_not_taken_for_an_empty_place() -> None:
    assert guess([5, 0, 0, 7]) == ([], 0)
    assert guess([0, 7, 1, 0, 0, 7], sizes=(3, 3)) == ([], 0)


@pytest.mark.parametrize("budget", [0, -3])
def test_no_budget_no_draft_and_the_text_is_still_learned(budget: int) -> None:
    proposer = NgramProposer(2, 5)
    view = View(1, array("i", [1, 2, 3, 1, 2]))
    assert proposer.propose(asks([view], [budget]))[0].tokens == []
    assert proposer.propose(asks([view], [1]))[0].tokens == [3]


def test_no_draft_is_longer_than_its_budget_or_the_limit_of_all_drafts() -> None:
    tokens = [*range(200), 0, 1]
    assert guess(tokens, budget=10)[0] == list(range(2, 12))
    assert len(guess(tokens, budget=10**6)[0]) == MAX_DRAFT_TOKENS


def test_shortest_and_longest_ngram_are_kept_to() -> None:
    assert guess([1, 2, 3, 9, 2, 3], sizes=(3, 5)) == ([], 0)
    assert guess([1, 2, 3, 9, 1, 2, 3], sizes=(1, 2)) == ([9, 1, 2, 3], 2)
    assert guess([4, 9, 4], budget=1, sizes=(1, 1)) == ([9], 1)


@pytest.mark.parametrize("sizes", [(1, 1), (2, 5), (3, 8), (1, 32)])
def test_grown_step_by_step_the_index_finds_what_looking_everywhere_finds(sizes: tuple[int, int]) -> None:
    chance = random.Random(5)
    index, text = NgramIndex(*sizes), array("i")
    for _ in range(300):
        text.extend(chance.choices((0, 1, 2, 70000, 131071), k=chance.choice((0, 1, 1, 3))))
        index.extend(text)
        assert index.find() == obvious_find(text.tolist(), *sizes)


def test_a_step_touches_new_tokens_only() -> None:
    class CountedTokens(array):  # type: ignore[type-arg]
        reads = 0

        def __getitem__(self, at: object) -> object:
            CountedTokens.reads += 1
            return super().__getitem__(at)  # type: ignore[index]

    tokens = CountedTokens("i", range(5000))
    index = NgramIndex(2, 5)
    index.extend(tokens)
    CountedTokens.reads = 0
    tokens.append(1)
    index.extend(tokens)
    index.find()
    assert CountedTokens.reads == 1


def test_ids_wider_than_the_packing_are_only_a_worse_guess() -> None:
    # 2**20 + 1 shares its lower bits with 1: at worst a wrong guess, never an error.
    assert guess([2**20 + 1, 2, 3, 1, 2], budget=1)[0] == [3]


def test_forgotten_sequences_leave_nothing() -> None:
    proposer = NgramProposer(2, 5)
    proposer.propose(asks([View(n, array("i", range(100))) for n in range(10)], [4] * 10))
    assert proposer.held_bytes() > 10_000
    for n in range(12):
        proposer.forget(n)
    assert proposer.held_bytes() == 0


def test_sequences_do_not_see_each_other() -> None:
    proposer = NgramProposer(2, 5)
    one, two = View(1, array("i", [1, 2, 3, 4])), View(2, array("i", [9, 9, 1, 2]))
    assert [draft.tokens for draft in proposer.propose(asks([one, two], [4, 4]))] == [[], []]


def test_the_continuation_wraps_as_often_as_needed() -> None:
    assert continuation(array("i", [1, 2, 3]), 1, 7) == [2, 3, 2, 3, 2, 3, 2]
    assert continuation(array("i", [1, 2, 3]), 0, 3) == [1, 2, 3]
