"""Suffix decoding behind the proposer's seam: own text, shared text, long prompts, and what is forgotten."""

from __future__ import annotations

import random
from array import array

import pytest
from asking import asks

from services.config import Settings
from services.proposer.draft import EMPTY, MAX_DRAFT_TOKENS, Draft
from services.proposer.proposer import View
from services.proposer.suffix import SLICE, SuffixProposer
from services.proposer.suffix_store import compiling
from services.proposer.suffix_store.followers import Followers, Rule
from services.proposer.suffix_store.shared import SharedStore, shares_of
from services.proposer.suffix_store.validate import problems

pytestmark = pytest.mark.usefixtures("compiled")


@pytest.fixture(scope="module")
def compiled() -> None:
    compiling.start().join()
    assert compiling.is_compiled()


def own(depth: int = 64, **rule: float) -> SuffixProposer:
    return SuffixProposer(depth, Rule(**rule))


def sharing(max_requests: int | None = None, tokens: int = 100_000) -> SuffixProposer:
    return SuffixProposer(64, Rule(factor=4.0), max_requests, tokens)


def view(number: int, tokens: list[int], prompt: int = 0) -> View:
    return View(number, array("i", tokens), prompt)


def guess(proposer: SuffixProposer, tokens: list[int], budget: int = 8) -> Draft:
    [draft] = proposer.propose(asks([view(1, tokens)], [budget]))
    return draft


def say(proposer: SuffixProposer, one: View, tokens: list[int], budget: int = 8) -> Draft:
    one.tokens.extend(tokens)
    [draft] = proposer.propose(asks([one], [budget]))
    return draft


# A request's own text ---------------------------------------------------------------------------------------


def test_what_followed_the_same_words_before_is_the_guess() -> None:
    draft = guess(own(), [1, 2, 3, 4, 5, 9, 1, 2, 3])
    assert draft == Draft([4, 5, 9], "suffix", 3)


def test_a_longer_context_gets_a_longer_draft() -> None:
    words = [*range(20), 77]
    assert guess(own(), [*words, 18, 19]).tokens == [77, 18]
    assert guess(own(), [*words, 15, 16, 17, 18, 19], 64).tokens == [77, 15, 16, 17, 18]
    assert len(guess(own(factor=4.0), words + list(range(15)), 64).tokens) > 20


def test_of_several_continuations_the_most_frequent_is_the_guess() -> None:
    assert guess(own(), [1, 2, 30, 1, 2, 40, 1, 2, 40, 1, 2], 1).tokens == [40]
    # Not the most recent; of equally frequent ones that which got there first.
    assert guess(own(), [1, 2, 40, 1, 2, 40, 1, 2, 30, 1, 2], 1).tokens == [40]
    assert guess(own(), [1, 2, 40, 8, 1, 2, 30, 9, 1, 2], 1).tokens == [40]


def test_an_unlikely_token_ends_the_draft() -> None:
    text: list[int] = []
    for after in range(8):
        text += [1, 2, 3, 50 + after]
    text += [1, 2]
    assert guess(own(least=0.3), text).tokens[:2] == [3]
    assert guess(own(least=0.0, factor=4.0), text).tokens[:2] == [3, 50]
    assert guess(own(least=1.0), text) == EMPTY


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3, 4, 5]])
def test_without_an_earlier_occurrence_there_is_no_guess(tokens: list[int]) -> None:
    assert guess(own(), tokens) == EMPTY


@pytest.mark.parametrize("budget", [0, -3])
def test_no_budget_no_draft_and_the_text_is_still_learned(budget: int) -> None:
    proposer, one = own(), view(1, [1, 2, 3, 1, 2])
    assert proposer.propose(asks([one], [budget])) == [EMPTY]
    assert proposer.propose(asks([one], [1]))[0].tokens == [3]


def test_no_draft_is_longer_than_its_budget_or_the_limit_of_all_drafts() -> None:
    text = [*range(300), *range(100)]
    assert len(guess(own(factor=8.0), text, 10).tokens) == 10
    assert len(guess(own(factor=8.0), text, 10**6).tokens) == MAX_DRAFT_TOKENS


def test_a_draft_goes_on_past_the_longest_context() -> None:
    text = [*range(100), *range(8)]
    assert guess(own(depth=8, least=0.0, factor=8.0), text, 64).tokens == list(range(8, 72))


def test_grown_step_by_step_drafts_are_those_of_the_whole_text_at_once() -> None:
    chance = random.Random(4)
    proposer, one = own(), view(1, [])
    for _ in range(200):
        draft = say(proposer, one, chance.choices(range(4), k=chance.choice((0, 1, 1, 5))))
        assert draft == guess(own(), one.tokens.tolist())


def test_sequences_do_not_see_each_other() -> None:
    drafts = own().propose(asks([view(1, [1, 2, 3, 4]), view(2, [9, 9, 1, 2])], [4, 4]))
    assert drafts == [EMPTY, EMPTY]


def test_forgotten_sequences_leave_nothing() -> None:
    for proposer in (own(), sharing()):
        empty = proposer.held_bytes()
        chance = random.Random(1)
        many = [view(number, chance.choices(range(50), k=100), prompt=100) for number in range(10)]
        proposer.propose(asks(many, [4] * 10))
        assert proposer.held_bytes() - empty > 10 * 100 * 32
        for number in range(12):
            proposer.forget(number)
        assert proposer.held_bytes() == empty
        assert len(proposer._followers) == 0


def test_while_the_loops_are_compiled_there_are_no_drafts_and_then_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer, one = own(), view(1, [1, 2, 3, 1, 2])
    with monkeypatch.context() as patched:
        patched.setattr(compiling, "is_compiled", lambda: False)
        assert proposer.propose(asks([one], [4])) == [EMPTY]
    assert proposer.propose(asks([one], [4]))[0].tokens[0] == 3


# Long prompts -----------------------------------------------------------------------------------------------


def test_a_long_prompt_joins_in_slices_and_short_texts_are_served_meanwhile() -> None:
    chance = random.Random(2)
    proposer = own()
    long = view(1, [chance.randrange(1000) for _ in range(32_000)] + [1, 2, 3, 4, 1, 2, 3])
    short, calls = view(2, [5, 6, 7, 5, 6]), 0
    while True:
        before = proposer._texts[1].joined if calls else 0
        drafts = proposer.propose(asks([long, short], [4, 4]))
        calls += 1
        assert drafts[1].tokens[0] == 7
        assert proposer._texts[1].joined - before <= SLICE
        if drafts[0] != EMPTY:
            break
    assert drafts[0].tokens[0] == 4
    assert calls == -(-len(long.tokens) // SLICE) + (len(short.tokens) + len(long.tokens) % SLICE > SLICE)
    assert problems(proposer._texts[1].automaton) == []


def test_the_shortest_wait_least() -> None:
    assert shares_of([100, 5, 0, 7], 20) == [8, 5, 0, 7]
    assert shares_of([100, 5], 200) == [100, 5]
    assert shares_of([-3, 4], 3) == [0, 3]
    assert shares_of([], 3) == []


# Shared text ------------------------------------------------------------------------------------------------

ANSWER = [10, 11, 12, 13, 14, 15, 16, 17]


def test_by_default_nothing_is_shared() -> None:
    proposer = SuffixProposer.of(Settings.for_tests(method="suffix"))
    say(proposer, view(1, [1], prompt=1), ANSWER)
    assert say(proposer, view(2, [3], prompt=1), ANSWER[:4]) == EMPTY


def test_what_one_request_says_is_the_guess_for_the_next() -> None:
    proposer = sharing()
    one = view(1, [1], prompt=1)
    say(proposer, one, ANSWER)
    proposer.forget(1)
    draft = say(proposer, view(2, [3], prompt=1), ANSWER[:4])
    assert draft == Draft(ANSWER[4:], "suffix", 4)


def test_running_requests_are_heard_at_once_even_in_the_same_batch() -> None:
    proposer = sharing()
    reader, speaker = view(1, [3, 10, 11], prompt=3), view(2, [4, *ANSWER], prompt=1)
    drafts = proposer.propose(asks([reader, speaker], [8, 8]))
    assert drafts[0].tokens == ANSWER[2:8]


def test_prompts_are_read_and_not_learned() -> None:
    proposer = sharing()
    say(proposer, view(1, ANSWER, prompt=len(ANSWER)), [99])
    assert say(proposer, view(2, ANSWER[:4], prompt=4), []) == EMPTY
    say(proposer, view(3, [1], prompt=1), ANSWER)
    # The context reaches from the prompt into the answer.
    assert say(proposer, view(4, ANSWER[:2], prompt=2), ANSWER[2:4]).match_length == 4


def test_a_requests_own_text_wins_when_scores_are_equal_and_not_when_they_are_lower() -> None:
    proposer, mine = sharing(), [10, 11, 80, 5, 10, 11]
    say(proposer, view(1, [0], prompt=1), [10, 11, 70])
    # Own: 10 11 has come twice, and 80 behind it once. Shared: once, and 70 behind it.
    assert say(proposer, view(2, mine, prompt=6), [], 1).tokens == [70]
    say(proposer, view(3, [0], prompt=1), [10, 11])
    assert say(proposer, view(4, mine, prompt=6), [], 1).tokens == [80]


def test_a_full_store_is_read_until_the_next_is_half_full() -> None:
    chance = random.Random(6)
    proposer = sharing(tokens=1000)
    shared = proposer._shared
    assert shared is not None

    def noise(number: int, count: int) -> None:
        say(proposer, view(number, [1], prompt=1), [chance.randrange(10**6) for _ in range(count)])
        proposer.forget(number)

    def known(number: int) -> bool:
        found = say(proposer, view(number, ANSWER[:4], prompt=4), []) != EMPTY
        proposer.forget(number)
        return found

    say(proposer, view(1, [1], prompt=1), ANSWER)
    proposer.forget(1)
    noise(2, 990)
    assert known(3)
    noise(4, 400)  # overflows into the next one
    assert len(shared._generations) == 2 and known(5)
    for number in range(6, 9):
        noise(number, 100)
        assert known(number + 100) == (len(shared._generations) == 2)
    assert len(shared._generations) == 1
    assert shared.tokens() <= 1000
    assert len(proposer._followers) == 0


def test_what_does_not_fit_into_a_full_store_is_not_lost() -> None:
    proposer = sharing(tokens=1000)
    one = view(1, [1], prompt=1)
    say(proposer, one, list(range(2000, 2995)))
    say(proposer, one, ANSWER)  # five fit
    proposer.forget(1)
    assert say(proposer, view(2, ANSWER[5:7], prompt=2), [], 1).tokens == ANSWER[7:]


@pytest.mark.parametrize("most", [1, 2, 3, 10])
def test_no_more_requests_are_kept_than_may_be(most: int) -> None:
    proposer = sharing(max_requests=most)
    shared = proposer._shared
    assert shared is not None
    for number in range(40):
        say(proposer, view(number, [1], prompt=1), [100 * number + k for k in range(10)])
        assert sum(generation.requests for generation in shared._generations) <= most
        assert len(shared._generations) <= 2
        last = [100 * number + k for k in range(4)]
        assert say(proposer, view(1000 + number, last, prompt=4), []) != EMPTY
    assert all(problems(generation.automaton) == [] for generation in shared._generations)


def test_many_newcomers_at_once_take_over_from_each_other() -> None:
    proposer = sharing(max_requests=1)
    for _ in range(3):
        many = [view(number, [1, *range(100 * number, 100 * number + 10)], prompt=1) for number in range(50)]
        proposer.propose(asks(many, [4] * 50))
        for one in many:
            say(proposer, one, [7])
            proposer.forget(one.sequence_id)
    assert len(proposer._followers) == 0


def test_a_text_that_comes_back_after_long_still_finds_its_place() -> None:
    proposer, one = sharing(), view(1, [1], prompt=1)
    say(proposer, one, [5])
    say(proposer, view(2, [1], prompt=1), ANSWER)
    chance = random.Random(3)
    one.tokens.extend(chance.randrange(10**6) for _ in range(500))
    assert say(proposer, one, ANSWER[:4]).tokens == ANSWER[4:]


def test_at_random_the_shared_store_stays_whole_and_within_its_bounds() -> None:
    chance = random.Random(8)
    followers = Followers()
    store = SharedStore(followers, 16, 300, 9)
    members, texts = {}, {}
    for number in range(1500):
        act = chance.random()
        if act < 0.1 or not members:
            texts[number] = array("i", chance.choices(range(5), k=chance.randint(0, 30)))
            members[number] = store.join(len(texts[number]))
        elif act < 0.2:
            gone = chance.choice(list(members))
            store.leave(members.pop(gone))
        batch = chance.sample(list(members), min(len(members), 6))
        for each in batch:
            texts[each].extend(chance.choices(range(5), k=chance.randint(0, 12)))
        store.write([members[each] for each in batch], [texts[each] for each in batch], 40)
        turns = [turn for each in batch for turn in store.reading(members[each], texts[each], 4)]
        followers.run(turns, Rule())
        assert store.tokens() <= 600 and len(store._generations) <= 2
        if number % 50 == 0:
            assert all(problems(generation.automaton) == [] for generation in store._generations)
    for member in members.values():
        store.leave(member)
    assert len(followers) == 0
