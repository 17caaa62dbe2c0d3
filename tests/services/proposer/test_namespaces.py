"""What one namespace says is nothing to another; how many there are, and what they take, is bounded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from asking import asks, guess, knowledge, say, told, view

from services.api.settings import Settings
from services.proposer.auto import AutoProposer
from services.proposer.draft import EMPTY, Draft
from services.proposer.from_text import FromText
from services.proposer.knowledge import SLICE, Knowledge, Rule
from services.proposer.namespaces import Namespace
from services.proposer.proposer import View
from services.proposer.suffix import SuffixProposer
from services.proposer.suffix_store.segment import Segment
from services.proposer.suffix_store.validate import problems

pytestmark = pytest.mark.usefixtures("compiled")

ANSWER = list(range(10, 40))
SECRET = [501, 502, 503, 504, 505, 506, 507]


def methods(held: Knowledge) -> list[FromText]:
    return [AutoProposer(held), SuffixProposer(held, Rule(factor=4.0))]


def named(held: Knowledge, name: str) -> Namespace:
    namespace = held.namespaces.get(name)
    assert namespace is not None
    return namespace


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    yield Segment.build([ANSWER], tmp_path / "one.segment")


# Apart ------------------------------------------------------------------------------------------------------


def drafts_of_one(others_say: bool, seed: int) -> list[Draft]:
    """What A is told while B says nothing, or says A's words and secrets, and is right or wrong with them."""
    chance, theirs = random.Random(seed), random.Random(seed + 1)
    proposer = methods(knowledge())[seed % 2]
    seen = []
    mine = view(1, [1, 2], 2, "a", SECRET)
    other = view(2, [1, 2], 2, "b", SECRET)
    for number in range(80):
        mine.tokens.extend(chance.choice((SECRET[:4], ANSWER[:5], chance.choices(range(9), k=3))))
        batch = [mine]
        if others_say:
            other.tokens.extend(theirs.choice((SECRET, mine.tokens[-9:].tolist(), theirs.choices(range(9), k=4))))
            batch.insert(theirs.randrange(2), other)
        seen.append(proposer.propose(asks(batch, [16] * len(batch)))[batch.index(mine)])
        if number == 40:
            proposer.forget(1)
            mine = view(1, [3], 1, "a")
        if number % 7 == 0 and others_say:
            proposer.forget(2)
            other = view(2, [3], 1, "b")
    return seen


@pytest.mark.parametrize("seed", range(6))
def test_drafts_and_chances_of_one_are_the_same_whatever_another_says(seed: int) -> None:
    assert drafts_of_one(True, seed) == drafts_of_one(False, seed)


def test_a_secret_is_found_where_it_was_said_and_nowhere_else() -> None:
    for number in range(2):
        proposer = methods(knowledge())[number]
        say(proposer, view(1, [1], 1, "a"), SECRET)
        assert say(proposer, view(2, [2], 1, "a"), SECRET[:3]).tokens[:4] == SECRET[3:]
        for other, name in enumerate(("b", "", "A", "a ")):
            assert say(proposer, view(3 + other, [2], 1, name), SECRET[:3]) == EMPTY


def test_who_does_not_want_to_teach_may_learn() -> None:
    proposer = SuffixProposer(knowledge(), Rule())
    silent = View(1, view(1, [1]).tokens, 1, namespace="a", learn=False)
    say(proposer, silent, SECRET)
    assert say(proposer, view(2, [2], 1, "a"), SECRET[:3]) == EMPTY
    assert say(proposer, view(3, [2], 1, "a"), SECRET) == EMPTY
    assert say(proposer, View(4, view(4, [1]).tokens, 1, namespace="a", learn=False), SECRET[:3]).source == "shared"


def test_prompts_are_learned_where_that_is_set() -> None:
    for learns in (False, True):
        held = Knowledge.of(Settings.for_tests(suffix_decoding_learn_prompts=learns))
        proposer = SuffixProposer(held, Rule())
        guess(proposer, view(1, SECRET, len(SECRET), "a"))
        assert (say(proposer, view(2, [2], 1, "a"), SECRET[:3]) != EMPTY) == learns


# Segments and corpora -----------------------------------------------------------------------------------------


def test_segments_are_guessed_from_in_their_namespace_as_long_as_they_are_set(segment: Segment) -> None:
    for number in range(2):
        held = knowledge()
        proposer = methods(held)[number]
        named(held, "a").set_segments([segment])
        draft = guess(proposer, view(1, ANSWER[:6], 6, "a"))
        assert (draft.tokens[:4], draft.source, draft.match_length) == (ANSWER[6:10], "store", 6)
        assert guess(proposer, view(2, ANSWER[:6], 6, "b")) == EMPTY
        named(held, "a").set_segments([])
        assert guess(proposer, view(1, ANSWER[:6], 6, "a")) == EMPTY


def test_a_corpus_is_named_in_its_drafts_and_may_be_chosen(segment: Segment) -> None:
    held = knowledge()
    proposer = methods(held)[0]
    named(held, "a").set_corpus("books", [segment])

    def asked(number: int, corpora: list[str] | None) -> Draft:
        return guess(proposer, View(number, view(1, ANSWER[:6]).tokens, 6, namespace="a", corpora=corpora), 4)

    expected = (ANSWER[6:10], "corpus:books", 6)
    assert told(asked(1, None)) == told(asked(2, ["books", "none of that name"])) == expected
    assert asked(3, []) == EMPTY == asked(4, ["laws"])
    # A running request hears of what comes and goes.
    named(held, "a").set_corpus("laws", [segment, segment])
    assert told(asked(4, ["laws"])) == (ANSWER[6:10], "corpus:laws", 6)
    named(held, "a").set_corpus("laws", [])
    named(held, "a").set_corpus("books", [])
    assert asked(4, ["laws"]) == EMPTY == asked(1, None)


def test_what_is_ahead_is_part_of_the_context_in_segments(segment: Segment) -> None:
    held = knowledge()
    named(held, "a").set_segments([segment])
    draft = guess(methods(held)[1], view(1, ANSWER[:3], 3, "a"), 4, ANSWER[3:5])
    assert (draft.tokens, draft.match_length) == (ANSWER[5:9], 5)


# Bounds -----------------------------------------------------------------------------------------------------


def test_of_too_many_namespaces_those_unused_the_longest_go() -> None:
    held = knowledge(most=3)
    proposer, met = SuffixProposer(held, Rule()), []
    held.namespaces.met = lambda namespace: met.append(namespace.name)
    for number, name in enumerate("abcada"):
        say(proposer, view(number, [number], 1, name), ANSWER)
        proposer.forget(number)
    assert [namespace.name for namespace in held.namespaces.known()] == ["c", "d", "a"]
    assert met == ["a", "b", "c", "d"]
    assert say(proposer, view(9, [9], 1, "b"), ANSWER[:4]) == EMPTY
    assert say(proposer, view(10, [9], 1, "a"), ANSWER[:4]) != EMPTY


def test_a_namespace_with_a_running_request_stays_and_who_finds_no_place_shares_nothing() -> None:
    held = knowledge(most=2)
    proposer = SuffixProposer(held, Rule())
    running = [view(number, [number], 1, name) for number, name in enumerate("ab")]
    for one in running:
        say(proposer, one, ANSWER)
    lonely = view(7, [1], 1, "c")
    assert say(proposer, lonely, [*ANSWER, *ANSWER[:3]]).source == "suffix"
    assert [namespace.name for namespace in held.namespaces.known()] == ["a", "b"]
    proposer.forget(0)
    assert say(proposer, view(8, [1], 1, "c"), ANSWER[:3]) == EMPTY
    assert [namespace.name for namespace in held.namespaces.known()] == ["b", "c"]


def test_all_namespaces_together_hold_no_more_bytes_than_they_may() -> None:
    most = 600_000
    held = knowledge(max_bytes=most)
    proposer, chance = SuffixProposer(held, Rule()), random.Random(3)
    tables = calibrations = 0
    for number in range(40):
        one = view(number, [1], 1, f"space {number % 8}")
        for _ in range(4):
            say(proposer, one, [chance.randrange(3000) for _ in range(500)])
            tables = held.namespaces.held_bytes()
            calibrations = sum(namespace.chances.nbytes for namespace in held.namespaces.known())
            assert tables - calibrations <= most
        last = one.tokens[-8:-4].tolist()
        assert say(proposer, view(1000 + number, last, 4, one.namespace), [], 4) != EMPTY
        proposer.forget(number)
        proposer.forget(1000 + number)
    for namespace in held.namespaces.known():
        assert all(problems(automaton) == [] for automaton in namespace.automata)


def test_a_store_too_small_for_anything_learns_nothing_and_nobody_waits() -> None:
    proposer = SuffixProposer(knowledge(max_bytes=100), Rule())
    assert say(proposer, view(1, [1], 1, "a"), [*ANSWER, *ANSWER[:3]]).source == "suffix"
    assert say(proposer, view(2, [1], 1, "a"), ANSWER[:3]) == EMPTY


def test_a_long_answer_is_learned_in_slices() -> None:
    held = knowledge()
    one = view(1, list(range(SLICE * 2 + 100)), 0, "a")
    for seen in (SLICE, 2 * SLICE, 2 * SLICE + 100):
        assert not held.is_followed(one)
        held.follow([one])
        assert named(held, "a").tokens() == seen
    assert held.is_followed(one)


def test_at_random_everything_stays_whole_and_within_its_bounds(segment: Segment) -> None:
    chance = random.Random(8)
    held = knowledge(16, (2, 3), 300, max_requests=9, most=4)
    proposers = methods(held)
    running: dict[int, View] = {}
    for number in range(1500):
        act = chance.random()
        if act < 0.15 or not running:
            prompt = chance.choices(range(5), k=chance.randint(0, 30))
            prediction = chance.choices(range(5), k=chance.choice((0, 9)))
            running[number] = view(number, prompt, len(prompt), chance.choice(("", *"abcdef")), prediction)
        elif act < 0.25:
            gone = chance.choice(list(running))
            chance.choice(proposers).forget(gone)
            del running[gone]
        elif act < 0.3:
            for namespace in held.namespaces.known():
                namespace.set_segments([segment] * chance.randint(0, 2))
                namespace.set_corpus(chance.choice("xy"), [segment] * chance.randint(0, 2))
        batch = chance.sample(list(running.values()), min(len(running), 6))
        for one in batch:
            one.tokens.extend(chance.choices(range(5), k=chance.randint(0, 12)))
        drafts = chance.choice(proposers).propose(asks(batch, [chance.randint(-1, 9) for _ in batch]))
        assert all(len(draft.chances) == len(draft.tokens) <= 9 for draft in drafts)
        assert len(held.namespaces) <= 4 and held.namespaces.tokens() <= 4 * 600
        if number % 100 == 0:
            for namespace in held.namespaces.known():
                assert all(problems(automaton) == [] for automaton in namespace.automata)
                assert len(namespace.automata) <= 2
                assert np.isfinite(namespace.chances).all()
                assert ((namespace.chances[:, 0] >= 0) & (namespace.chances[:, 0] <= 1)).all()
            assert all(problems(text.automaton) == [] for text in held._texts.values())
    for number in list(running):
        proposers[0].forget(number)
    assert len(held) == 0 and not any(namespace.requests for namespace in held.namespaces.known())
