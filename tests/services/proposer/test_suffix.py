"""Suffix decoding behind the drafter's seam: own text, shared text, long prompts, and what is forgotten."""

from __future__ import annotations

import random

import pytest
from asking import asks, drafters, index, index_of, say, texts, view
from asking import guess as guess_of

from services.api.drafter import MAX_DRAFT_TOKENS, NO_DRAFT, Draft, Text
from services.proposer.fast.namespaces import FastNamespace
from services.proposer.fast.texts import SLICE, FastTexts
from services.proposer.plain.guess import DraftRule
from services.proposer.suffix import SuffixDrafter

pytestmark = pytest.mark.usefixtures("compiled")


def own(depth: int = 64, **rule: float) -> SuffixDrafter:
    return SuffixDrafter(index(depth, learns=False), DraftRule(**rule))


def sharing(tokens: int = 100_000) -> SuffixDrafter:
    return reading(texts(tokens=tokens))


def reading(held: FastTexts) -> SuffixDrafter:
    return SuffixDrafter(index_of(held), DraftRule(factor=4.0))


def of_all(number: int, tokens: list[int], prompt: int = 0) -> Text:
    return view(number, tokens, prompt, "all")


def space(held: FastTexts) -> FastNamespace:
    [namespace] = held.namespaces.known()
    return namespace


def guess(drafter: SuffixDrafter, tokens: list[int], budget: int = 8) -> Draft:
    return guess_of(drafter, view(1, tokens), budget)


# A request's own text ---------------------------------------------------------------------------------------


def test_what_followed_the_same_words_before_is_the_guess() -> None:
    draft = guess(own(), [1, 2, 3, 4, 5, 9, 1, 2, 3])
    assert draft == Draft([4, 5, 9], "suffix", 3, confidence=[0.5, 1.0, 1.0])


def test_a_longer_context_gets_a_longer_draft() -> None:
    words = [*range(20), 77]
    assert guess(own(), [*words, 18, 19]).tokens == [77, 18]
    assert guess(own(), [*words, 15, 16, 17, 18, 19], 64).tokens == [77, 15, 16, 17, 18]
    assert len(guess(own(factor=4.0), words + list(range(15)), 64).tokens) > 20


def test_of_several_continuations_the_most_frequent_is_the_guess() -> None:
    assert guess(own(), [1, 2, 30, 1, 2, 40, 1, 2, 40, 1, 2], 1).tokens == [40]
    # Not the most recent; of equally frequent ones the first to come, from twice on the last to get there.
    assert guess(own(), [1, 2, 40, 1, 2, 40, 1, 2, 30, 1, 2], 1).tokens == [40]
    assert guess(own(), [1, 2, 40, 8, 1, 2, 30, 9, 1, 2], 1).tokens == [40]
    twice = [1, 2, 40, 5, 1, 2, 40, 6, 1, 2, 30, 8, 1, 2, 30, 9, 1, 2]
    assert guess(own(), twice, 1).tokens == [30]
    # Unless the very first is one behind.
    assert guess(own(), [1, 2, 50, 7, *twice], 1).tokens == [40]
    assert guess(own(), [1, 2, 50, 7, *twice, 50, 3, 1, 2], 1).tokens == [50]


def test_an_unlikely_token_ends_the_draft() -> None:
    text: list[int] = []
    for after in range(8):
        text += [1, 2, 3, 50 + after]
    text += [1, 2]
    assert guess(own(least=0.3), text).tokens[:2] == [3]
    assert guess(own(least=0.0, factor=4.0), text).tokens[:2] == [3, 50]
    assert guess(own(least=1.0), text) == NO_DRAFT


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3, 4, 5]])
def test_without_an_earlier_occurrence_there_is_no_guess(tokens: list[int]) -> None:
    assert guess(own(), tokens) == NO_DRAFT


@pytest.mark.parametrize("budget", [0, -3])
def test_no_budget_no_draft_and_the_text_is_still_learned(budget: int) -> None:
    drafter, one = own(), view(1, [1, 2, 3, 1, 2])
    assert drafter.draft(asks([one], [budget])) == [NO_DRAFT]
    assert drafter.draft(asks([one], [1]))[0].tokens == [3]


def test_no_draft_is_longer_than_its_budget_or_the_limit_of_all_drafts() -> None:
    text = [*range(300), *range(100)]
    assert len(guess(own(factor=8.0), text, 10).tokens) == 10
    assert len(guess(own(factor=8.0), text, 10**6).tokens) == MAX_DRAFT_TOKENS


def test_a_draft_goes_on_past_the_longest_context() -> None:
    text = [*range(100), *range(8)]
    assert guess(own(depth=8, least=0.0, factor=8.0), text, 64).tokens == list(range(8, 72))


def test_grown_step_by_step_drafts_are_those_of_the_whole_text_at_once() -> None:
    chance = random.Random(4)
    drafter, one = own(), view(1, [])
    for _ in range(200):
        draft = say(drafter, one, chance.choices(range(4), k=chance.choice((0, 1, 1, 5))))
        if len(one.tokens) % 10 == 0:
            assert draft == guess(own(), one.tokens.tolist())


def test_sequences_do_not_see_each_other() -> None:
    drafts = own().draft(asks([view(1, [1, 2, 3, 4]), view(2, [9, 9, 1, 2])], [4, 4]))
    assert drafts == [NO_DRAFT, NO_DRAFT]


def test_who_has_no_guess_gets_nothing_of_what_a_batch_before_was_told() -> None:
    """Its tokens lie where the answers of a larger batch do."""
    drafter = own(factor=64.0)
    assert len(guess_of(drafter, view(1, [*range(500, 600), 500]), 64).tokens) == MAX_DRAFT_TOKENS
    many = [view(number, [5, 6, 5] if number == 40 else [5, 6, 7]) for number in range(30, 50)]
    drafts = drafter.draft(asks(many, [4] * 20))
    assert [draft.tokens[:1] for draft in drafts] == [[6] if number == 40 else [] for number in range(30, 50)]
    assert [draft.source for draft in drafts] == ["suffix" if number == 40 else "" for number in range(30, 50)]


def test_forgotten_sequences_leave_nothing() -> None:
    for held in (texts(learns=False), texts(tokens=100_000)):
        drafter = reading(held)
        guess_of(drafter, of_all(99, []))
        drafter.forget([99])
        empty = held.held_bytes()
        chance = random.Random(1)
        many = [of_all(number, chance.choices(range(50), k=100), prompt=100) for number in range(10)]
        drafter.draft(asks(many, [4] * 10))
        assert held.held_bytes() - empty > 10 * 100 * 32
        for number in range(12):
            drafter.forget([number])
        assert held.held_bytes() == empty
        assert len(held) == 0


# Long prompts -----------------------------------------------------------------------------------------------


def test_a_long_prompt_joins_in_slices_and_short_texts_are_served_meanwhile() -> None:
    chance = random.Random(2)
    drafter = own()
    long = view(1, [chance.randrange(1000) for _ in range(32_000)] + [1, 2, 3, 4, 1, 2, 3])
    short, calls = view(2, [5, 6, 7, 5, 6]), 0
    while True:
        drafts = drafter.draft(asks([long, short], [4, 4]))
        calls += 1
        assert drafts[1].tokens[0] == 7
        if drafts[0] != NO_DRAFT:
            break
    assert drafts[0].tokens[0] == 4
    assert calls == -(-len(long.tokens) // SLICE) + (len(short.tokens) + len(long.tokens) % SLICE > SLICE)


def test_the_shortest_wait_least() -> None:
    held = texts(learns=False)
    drafter = reading(held)
    # The rest of the first slice is the longest one's; a second one is too short for it by one token.
    views = [view(1, [1] * (SLICE - 1600 + SLICE + 1)), view(2, [2] * 700), view(3, []), view(4, [4] * 900)]
    drafter.draft(asks(views, [1] * 4))
    assert [held.is_taken_in(each) for each in views] == [False, True, True, True]
    drafter.draft(asks(views, [1] * 4))
    assert not held.is_taken_in(views[0])
    drafter.draft(asks(views, [1] * 4))
    assert held.is_taken_in(views[0])


# Shared text ------------------------------------------------------------------------------------------------

ANSWER = [10, 11, 12, 13, 14, 15, 16, 17]


def test_nothing_is_shared_with_other_namespaces_and_by_nobody_else_at_all() -> None:
    drafter = drafters()["suffix"]
    for number, name in enumerate(("", "mine")):
        say(drafter, view(10 * number, [1], 1, name), ANSWER)
        assert say(drafter, view(10 * number + 1, [3], 1, "yours"), ANSWER[:4]) == NO_DRAFT
        drafter.forget([10 * number + 1])


def test_what_one_request_says_is_the_guess_for_the_next() -> None:
    drafter = sharing()
    one = of_all(1, [1], prompt=1)
    say(drafter, one, ANSWER)
    drafter.forget([1])
    draft = say(drafter, of_all(2, [3], prompt=1), ANSWER[:4])
    assert draft == Draft(ANSWER[4:], "shared", 4, confidence=[0.5, 1.0, 1.0, 1.0])


def test_running_requests_are_heard_at_once_even_in_the_same_batch() -> None:
    drafter = sharing()
    reader, predictor = of_all(1, [3, 10, 11], prompt=3), of_all(2, [4, *ANSWER], prompt=1)
    drafts = drafter.draft(asks([reader, predictor], [8, 8]))
    assert drafts[0].tokens == ANSWER[2:8]


def test_prompts_are_read_and_not_learned() -> None:
    drafter = sharing()
    say(drafter, of_all(1, ANSWER, prompt=len(ANSWER)), [99])
    assert say(drafter, of_all(2, ANSWER[:4], prompt=4), []) == NO_DRAFT
    say(drafter, of_all(3, [1], prompt=1), ANSWER)
    # The context reaches from the prompt into the answer.
    assert say(drafter, of_all(4, ANSWER[:2], prompt=2), ANSWER[2:4]).match_length == 4


def test_a_requests_own_text_wins_when_scores_are_equal_and_not_when_they_are_lower() -> None:
    drafter, mine = sharing(), [10, 11, 80, 5, 10, 11]
    say(drafter, of_all(1, [0], prompt=1), [10, 11, 70])
    # Own: 10 11 has come twice, and 80 behind it once. Shared: once, and 70 behind it.
    assert say(drafter, of_all(2, mine, prompt=6), [], 1).tokens == [70]
    say(drafter, of_all(3, [0], prompt=1), [10, 11])
    assert say(drafter, of_all(4, mine, prompt=6), [], 1).tokens == [80]


def test_a_full_store_makes_place_for_an_empty_one() -> None:
    chance, held = random.Random(6), texts(tokens=1000)
    drafter = reading(held)

    def noise(number: int, count: int) -> None:
        say(drafter, of_all(number, [1], prompt=1), [chance.randrange(10**6) for _ in range(count)])
        drafter.forget([number])

    def known(number: int) -> bool:
        found = say(drafter, of_all(number, ANSWER[:4], prompt=4), []) != NO_DRAFT
        drafter.forget([number])
        return found

    filled: list[str] = []
    held.namespaces.filled = lambda namespace: filled.append(namespace.name)
    noise(1, 990 - len(ANSWER))
    say(drafter, of_all(2, [1], prompt=1), ANSWER)
    drafter.forget([2])
    assert known(3) and filled == []
    noise(4, 400)
    assert not known(5) and filled == [space(held).name]
    assert space(held).tokens() == 390
    assert len(held) == 0


def test_what_does_not_fit_into_a_full_store_is_not_lost() -> None:
    drafter = sharing(tokens=1000)
    one = of_all(1, [1], prompt=1)
    say(drafter, one, list(range(2000, 2995)))
    say(drafter, one, ANSWER)  # five fit
    drafter.forget([1])
    assert say(drafter, of_all(2, ANSWER[5:7], prompt=2), [], 1).tokens == ANSWER[7:]


def test_a_text_that_comes_back_after_long_still_finds_its_place() -> None:
    drafter, one = sharing(), of_all(1, [1], prompt=1)
    say(drafter, one, [5])
    say(drafter, of_all(2, [1], prompt=1), ANSWER)
    chance = random.Random(3)
    one.tokens.extend(chance.randrange(10**6) for _ in range(500))
    assert say(drafter, one, ANSWER[:4]).tokens == ANSWER[4:]


