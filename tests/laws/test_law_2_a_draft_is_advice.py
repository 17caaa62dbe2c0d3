"""Law 2: a proposer may be slow, dead, wrong or hostile: that costs speed, never a request, never a token.

With real processes killed: tests/flow/test_deaths.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from engine_room import Ask, EngineRoom, Guess, draft, proposed_by, some_prompt

from services.api.drafts import PlacedDraft
from services.api.messages import Finished
from services.worker.running.mock import MockRunner, Profile

VOCABULARY = Profile().vocab_size


def wrong(ask: Ask) -> PlacedDraft:
    return draft(ask, [99] * ask.budget)


def too_long(ask: Ask) -> PlacedDraft:
    return draft(ask, [100 + k % 32 for k in range(5000)])


def outside_the_vocabulary(ask: Ask) -> PlacedDraft:
    return draft(ask, [10**9, -1, 2**31 - 1])


def next_to_the_vocabulary(ask: Ask) -> PlacedDraft:
    return draft(ask, [VOCABULARY])


def behind_a_good_start(ask: Ask) -> PlacedDraft:
    return draft(ask, [*cycle(ask).draft.tokens[:4], VOCABULARY + 1])


def negative(ask: Ask) -> PlacedDraft:
    return draft(ask, [-1])


def in_a_tree(ask: Ask) -> PlacedDraft:
    return draft(ask, [100, 101, VOCABULARY], parents=[-1, -1, 0])


def about_another_text(ask: Ask) -> PlacedDraft:
    return draft(ask, [100], sequence_id=ask.id + 1)


def from_the_past(ask: Ask) -> PlacedDraft:
    return draft(ask, [100], length=len(ask.text) - 1)


def with_a_broken_tree(ask: Ask) -> PlacedDraft:
    return draft(ask, [100, 101, 102], parents=[7, -9, 2])


def with_parents_that_come_later(ask: Ask) -> PlacedDraft:
    return draft(ask, [100, 101, 102], parents=[1, -1, 2])


def with_parents_of_some(ask: Ask) -> PlacedDraft:
    return draft(ask, [100, 101, 102], parents=[-1, 0])


def with_parents_too_many(ask: Ask) -> PlacedDraft:
    return draft(ask, [100], parents=[-1] * 70000)


def with_twins(ask: Ask) -> PlacedDraft:
    return draft(ask, [100, 100, 101, 101], parents=[-1, -1, 0, 1])


def bush(ask: Ask) -> PlacedDraft:
    """As good as it gets, but for its size and its chances."""
    chance = random.Random(len(ask.text))
    tokens = [100 + k % 32 for k in range(300)]
    parents: list[int] = []
    taken = set()
    for k, token in enumerate(tokens):
        parent = next(p for p in iter(lambda k=k: chance.randrange(-1, k), None) if (p, token) not in taken)
        taken.add((parent, token))
        parents.append(parent)
    confidence = [chance.choice([0.9, 1.0, 7.0, float("nan")]) for _ in tokens]
    return draft(ask, tokens, parents=parents, confidence=confidence)


def every_way(ask: Ask) -> PlacedDraft:
    """The cycle, with wrong ways beside each of its tokens, and before it."""
    right = cycle(ask).draft.tokens[:8]
    tokens, parents, above = [], [], -1
    for token in right:
        tokens += [99, token, 98]
        parents += [above, above, above]
        above = len(tokens) - 2
    return draft(ask, tokens, parents=parents, confidence=[0.3, 0.6, 0.1] * len(right))


def empty(ask: Ask) -> PlacedDraft:
    return draft(ask, [])


def silent(ask: Ask) -> None:
    return None


def cycle(ask: Ask) -> PlacedDraft:
    last = [*ask.text, *ask.ahead][-1]
    return draft(ask, [100 + (last - 100 + 1 + k) % 32 for k in range(ask.budget)])


def anything(ask: Ask) -> PlacedDraft | None:
    chance = random.Random(len(ask.text) * 31 + ask.id)
    return chance.choice([*HOSTILE, cycle, every_way])(ask)


# Those that are seen to be impossible.
REFUSED = [
    outside_the_vocabulary, next_to_the_vocabulary, behind_a_good_start, negative, in_a_tree, with_a_broken_tree,
    with_parents_that_come_later, with_parents_of_some, with_parents_too_many, with_twins,
]  # fmt: skip
HOSTILE = [
    wrong, too_long, about_another_text, from_the_past, bush, empty, *REFUSED,
]  # fmt: skip


def texts(guess: Guess | None = None, **limits: Any) -> tuple[list[list[int]], int]:
    chance = random.Random(5)
    with EngineRoom(MockRunner(Profile(acceptance=0.8), pages=120), guess, **limits) as room:
        sequence_ids = [
            room.send(some_prompt(chance, 60), max_tokens=chance.randint(1, 200), temperature=k % 2 * 0.8, seed=k)
            for k in range(40)
        ]
        room.run(sequence_ids)
        assert all(isinstance(room.ends[s][0], Finished) for s in sequence_ids)
        room.settle()
        assert not room.drafts.failed
        accepted = sum(tally.accepted for tally in room.scheduler.tallies.values())
        return [room.tokens[s] for s in sequence_ids], accepted


@cache
def plain_texts() -> list[list[int]]:
    """Without a proposer."""
    return texts()[0]


@pytest.mark.parametrize("guess", [*HOSTILE, silent, anything])
@pytest.mark.parametrize("method", ["ngram", "auto"])
def test_a_hostile_proposer_changes_no_token(guess: Guess, method: str) -> None:
    assert texts(guess, method=method)[0] == plain_texts()


def refused(guess: Guess, vocabulary: int = VOCABULARY) -> tuple[int, int]:
    """Drafts that were given, and those that were refused; none is verified, and no token changes."""
    given, found = 0, []

    def counted(ask: Ask) -> PlacedDraft | None:
        nonlocal given
        given += 1
        return guess(ask)

    for one in (None, counted):
        with EngineRoom(MockRunner(Profile(acceptance=0.8, vocab_size=vocabulary), pages=120), one) as room:
            sequence_ids = [room.send([100 + k], max_tokens=30, temperature=k % 2 * 0.8, seed=k) for k in range(4)]
            room.run(sequence_ids)
            found.append([room.tokens[sequence_id] for sequence_id in sequence_ids])
            # Nothing is forgotten before its counts are read.
            assert sum(tally.drafted for tally in room.scheduler.tallies.values()) == 0
            count = room.controller.counts.refused
    assert found[0] == found[1]
    return given, count


@pytest.mark.parametrize("guess", REFUSED)
def test_an_impossible_draft_is_refused_and_counted(guess: Guess) -> None:
    given, count = refused(guess)
    assert count == given > 50


# By fault, the probabilities of the tokens 100 and 101 among 256.
PROBABILITIES: dict[str, Callable[[np.ndarray], object]] = {
    "too small": lambda probs: np.multiply(probs, 0.9, out=probs),
    "too large": lambda probs: np.multiply(probs, 1.1, out=probs),
    "a token's mass twice": lambda probs: probs.__setitem__((1, 101), 1.0),
    "no chance for the token": lambda probs: probs.__setitem__((1, slice(101, 103)), (0.0, 0.502)),
    "negative": lambda probs: probs.__setitem__((0, slice(0, 2)), (-0.5, 0.504)),
    "nan": lambda probs: probs.__setitem__((1, 3), np.nan),
    "infinite": lambda probs: probs.__setitem__((0, 100), np.inf),
}


def sampled(change: Callable[[np.ndarray], object]) -> Guess:
    def guess(ask: Ask) -> PlacedDraft:
        probs = np.full((2, 256), 0.5 / 255, np.float32)
        probs[[0, 1], [100, 101]] = 0.5
        change(probs)
        return draft(ask, [100, 101], probs=probs)

    return guess


@pytest.mark.parametrize("fault", PROBABILITIES)
def test_a_draft_with_probabilities_that_are_no_distribution_is_refused_and_counted(fault: str) -> None:
    given, count = refused(sampled(PROBABILITIES[fault]), vocabulary=256)
    assert count == given > 50


@pytest.mark.parametrize("method", ["ngram", "auto"])
def test_a_good_proposer_changes_no_token_and_its_drafts_are_used(method: str) -> None:
    plain = plain_texts()
    guessed, accepted = texts(cycle, method=method)
    assert guessed == plain
    # With auto it depends on what steps of this machine cost.
    assert accepted > (sum(len(t) for t in plain) // 4 if method == "ngram" else 0)


@pytest.mark.parametrize("method", ["ngram", "auto"])
def test_the_right_path_of_a_good_tree_is_accepted(method: str) -> None:
    plain = plain_texts()
    guessed, accepted = texts(every_way, method=method)
    assert guessed == plain
    assert accepted > (sum(len(t) for t in plain) // 4 if method == "ngram" else 0)


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_our_own_proposers_change_no_token_and_are_used_where_a_text_repeats(method: str) -> None:
    plain = plain_texts()
    guessed, accepted = texts(proposed_by(method))
    assert guessed == plain
    assert accepted > sum(len(t) for t in plain) // 8
