"""What one namespace says is nothing to another; how many there are, and what they take, is bounded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from asking import asks, guess, index, index_of, say, texts, told, view
from automaton_problems import problems

from services.api.drafter import NO_DRAFT, Draft, Text
from services.api.settings import Settings
from services.proposer.auto import AutoDrafter
from services.proposer.fast.namespaces import FastNamespace
from services.proposer.fast.texts import SLICE, FastTexts
from services.proposer.index import SuffixIndex
from services.proposer.plain.guess import DraftRule
from services.proposer.segments.segment import Segment
from services.proposer.suffix import SuffixDrafter
from services.proposer.text_drafter import TextDrafter

pytestmark = pytest.mark.usefixtures("compiled")

ANSWER = list(range(10, 40))
SECRET = [501, 502, 503, 504, 505, 506, 507]


def methods(held: SuffixIndex) -> list[TextDrafter]:
    return [AutoDrafter(held), SuffixDrafter(held, DraftRule(factor=4.0))]


def named(held: FastTexts, name: str) -> FastNamespace:
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
    drafter = methods(index())[seed % 2]
    seen = []
    mine = view(1, [1, 2], 2, "a", SECRET)
    other = view(2, [1, 2], 2, "b", SECRET)
    for number in range(80):
        mine.tokens.extend(chance.choice((SECRET[:4], ANSWER[:5], chance.choices(range(9), k=3))))
        batch = [mine]
        if others_say:
            other.tokens.extend(theirs.choice((SECRET, mine.tokens[-9:].tolist(), theirs.choices(range(9), k=4))))
            batch.insert(theirs.randrange(2), other)
        seen.append(drafter.draft(asks(batch, [16] * len(batch)))[batch.index(mine)])
        if number == 40:
            drafter.forget([1])
            mine = view(1, [3], 1, "a")
        if number % 7 == 0 and others_say:
            drafter.forget([2])
            other = view(2, [3], 1, "b")
    return seen


@pytest.mark.parametrize("seed", range(6))
def test_drafts_and_chances_of_one_are_the_same_whatever_another_says(seed: int) -> None:
    assert drafts_of_one(True, seed) == drafts_of_one(False, seed)


def test_a_secret_is_found_where_it_was_said_and_nowhere_else() -> None:
    for number in range(2):
        drafter = methods(index())[number]
        say(drafter, view(1, [1], 1, "a"), SECRET)
        assert say(drafter, view(2, [2], 1, "a"), SECRET[:3]).tokens[:4] == SECRET[3:]
        for other, name in enumerate(("b", "", "A", "a ")):
            assert say(drafter, view(3 + other, [2], 1, name), SECRET[:3]) == NO_DRAFT


def test_who_does_not_want_to_teach_may_learn() -> None:
    drafter = SuffixDrafter(index(), DraftRule())
    silent = Text(1, view(1, [1]).tokens, 1, namespace="a", learn=False)
    say(drafter, silent, SECRET)
    assert say(drafter, view(2, [2], 1, "a"), SECRET[:3]) == NO_DRAFT
    assert say(drafter, view(3, [2], 1, "a"), SECRET) == NO_DRAFT
    assert say(drafter, Text(4, view(4, [1]).tokens, 1, namespace="a", learn=False), SECRET[:3]).source == "shared"


def test_prompts_are_learned_where_that_is_set() -> None:
    for learns in (False, True):
        held = SuffixIndex.open(Settings.for_tests(suffix_decoding_learn_prompts=learns))
        drafter = SuffixDrafter(held, DraftRule())
        guess(drafter, view(1, SECRET, len(SECRET), "a"))
        assert (say(drafter, view(2, [2], 1, "a"), SECRET[:3]) != NO_DRAFT) == learns


# Segments and corpora -----------------------------------------------------------------------------------------


def test_segments_are_guessed_from_in_their_namespace_as_long_as_they_are_set(segment: Segment) -> None:
    for number in range(2):
        held = texts()
        drafter = methods(index_of(held))[number]
        named(held, "a").set_segments([segment])
        draft = guess(drafter, view(1, ANSWER[:6], 6, "a"))
        assert (draft.tokens[:4], draft.source, draft.match_length) == (ANSWER[6:10], "store", 6)
        assert guess(drafter, view(2, ANSWER[:6], 6, "b")) == NO_DRAFT
        named(held, "a").set_segments([])
        assert guess(drafter, view(1, ANSWER[:6], 6, "a")) == NO_DRAFT


def test_a_corpus_is_named_in_its_drafts_and_may_be_chosen(segment: Segment) -> None:
    held = texts()
    drafter = methods(index_of(held))[0]
    named(held, "a").set_corpus("books", [segment])

    def asked(number: int, corpora: list[str] | None) -> Draft:
        return guess(drafter, Text(number, view(1, ANSWER[:6]).tokens, 6, namespace="a", corpora=corpora), 4)

    expected = (ANSWER[6:10], "corpus:books", 6)
    assert told(asked(1, None)) == told(asked(2, ["books", "none of that name"])) == expected
    assert asked(3, []) == NO_DRAFT == asked(4, ["laws"])
    # A running request hears of what comes and goes.
    named(held, "a").set_corpus("laws", [segment, segment])
    assert told(asked(4, ["laws"])) == (ANSWER[6:10], "corpus:laws", 6)
    named(held, "a").set_corpus("laws", [])
    named(held, "a").set_corpus("books", [])
    assert asked(4, ["laws"]) == NO_DRAFT == asked(1, None)


def test_what_is_ahead_is_part_of_the_context_in_segments(segment: Segment) -> None:
    held = texts()
    named(held, "a").set_segments([segment])
    draft = guess(methods(index_of(held))[1], view(1, ANSWER[:3], 3, "a"), 4, ANSWER[3:5])
    assert (draft.tokens, draft.match_length) == (ANSWER[5:9], 5)


# Bounds -----------------------------------------------------------------------------------------------------


def test_of_too_many_namespaces_those_unused_the_longest_go() -> None:
    held = texts(most=3)
    drafter, met = SuffixDrafter(index_of(held), DraftRule()), []
    held.namespaces.met = lambda namespace: met.append(namespace.name)
    for number, name in enumerate("abcada"):
        say(drafter, view(number, [number], 1, name), ANSWER)
        drafter.forget([number])
    assert [namespace.name for namespace in held.namespaces.known()] == ["c", "d", "a"]
    assert met == ["a", "b", "c", "d"]
    assert say(drafter, view(9, [9], 1, "b"), ANSWER[:4]) == NO_DRAFT
    assert say(drafter, view(10, [9], 1, "a"), ANSWER[:4]) != NO_DRAFT


def test_a_namespace_with_a_running_request_stays_and_who_finds_no_place_shares_nothing() -> None:
    held = texts(most=2)
    drafter = SuffixDrafter(index_of(held), DraftRule())
    running = [view(number, [number], 1, name) for number, name in enumerate("ab")]
    for one in running:
        say(drafter, one, ANSWER)
    lonely = view(7, [1], 1, "c")
    assert say(drafter, lonely, [*ANSWER, *ANSWER[:3]]).source == "suffix"
    assert [namespace.name for namespace in held.namespaces.known()] == ["a", "b"]
    drafter.forget([0])
    assert say(drafter, view(8, [1], 1, "c"), ANSWER[:3]) == NO_DRAFT
    assert [namespace.name for namespace in held.namespaces.known()] == ["b", "c"]


def test_all_namespaces_together_hold_no_more_bytes_than_they_may() -> None:
    most = 600_000
    held = texts(max_bytes=most)
    drafter, chance = SuffixDrafter(index_of(held), DraftRule()), random.Random(3)
    tables = calibrations = 0
    for number in range(40):
        one = view(number, [1], 1, f"space {number % 8}")
        for _ in range(4):
            say(drafter, one, [chance.randrange(3000) for _ in range(500)])
            tables = held.namespaces.held_bytes()
            calibrations = sum(namespace.chances.nbytes for namespace in held.namespaces.known())
            assert tables - calibrations <= most
        last = one.tokens[-8:-4].tolist()
        assert say(drafter, view(1000 + number, last, 4, one.namespace), [], 4) != NO_DRAFT
        drafter.forget([number])
        drafter.forget([1000 + number])
    for namespace in held.namespaces.known():
        assert problems(namespace.automaton) == []


def test_a_store_too_small_for_anything_learns_nothing_and_nobody_waits() -> None:
    drafter = SuffixDrafter(index(max_bytes=100), DraftRule())
    assert say(drafter, view(1, [1], 1, "a"), [*ANSWER, *ANSWER[:3]]).source == "suffix"
    assert say(drafter, view(2, [1], 1, "a"), ANSWER[:3]) == NO_DRAFT


def test_a_long_answer_is_learned_in_slices() -> None:
    held = texts()
    one = view(1, list(range(SLICE * 2 + 100)), 0, "a")
    for seen in (SLICE, 2 * SLICE, 2 * SLICE + 100):
        assert not held.is_taken_in(one)
        held.take_in([one])
        assert named(held, "a").tokens() == seen
    assert held.is_taken_in(one)


def test_at_random_everything_stays_whole_and_within_its_bounds(segment: Segment) -> None:
    chance = random.Random(8)
    held = texts(16, (2, 3), 300, most=4)
    drafters = methods(index_of(held))
    running: dict[int, Text] = {}
    for number in range(1500):
        act = chance.random()
        if act < 0.15 or not running:
            prompt = chance.choices(range(5), k=chance.randint(0, 30))
            prediction = chance.choices(range(5), k=chance.choice((0, 9)))
            running[number] = view(number, prompt, len(prompt), chance.choice(("", *"abcdef")), prediction)
        elif act < 0.25:
            gone = chance.choice(list(running))
            chance.choice(drafters).forget([gone])
            del running[gone]
        elif act < 0.3:
            for namespace in held.namespaces.known():
                namespace.set_segments([segment] * chance.randint(0, 2))
                namespace.set_corpus(chance.choice("xy"), [segment] * chance.randint(0, 2))
        batch = chance.sample(list(running.values()), min(len(running), 6))
        for one in batch:
            one.tokens.extend(chance.choices(range(5), k=chance.randint(0, 12)))
        drafts = chance.choice(drafters).draft(asks(batch, [chance.randint(-1, 9) for _ in batch]))
        assert all(len(draft.confidence) == len(draft.tokens) <= 9 for draft in drafts)
        assert len(held.namespaces) <= 4 and held.namespaces.tokens() <= 4 * 300
        if number % 100 == 0:
            for namespace in held.namespaces.known():
                assert problems(namespace.automaton) == []
                assert np.isfinite(namespace.chances).all()
                accepted, seen = namespace.chances.T
                assert ((accepted >= 0) & (accepted <= seen)).all()
            assert all(problems(text.automaton) == [] for text in held._row_of.values())
    for number in list(running):
        drafters[0].forget([number])
    assert len(held) == 0 and not any(namespace.requests for namespace in held.namespaces.known())
