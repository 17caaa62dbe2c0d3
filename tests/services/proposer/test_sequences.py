"""Texts from deltas: what fits is followed, what doesn't is unknown, and memory has an end."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from services.api.messages import Ended, ProposeItem
from services.proposer.sequences import FollowedSequence, Sequences


def whole(sequence_id: int, *tokens: int) -> ProposeItem:
    return ProposeItem(sequence_id=sequence_id, committed=len(tokens), tokens=list(tokens), first=True)


def delta(sequence_id: int, committed: int, *tokens: int) -> ProposeItem:
    return ProposeItem(sequence_id=sequence_id, committed=committed, tokens=list(tokens))


def text(sequence: FollowedSequence | None) -> list[int] | None:
    return None if sequence is None else sequence.text.tokens.tolist()


@pytest.fixture
def released() -> list[int]:
    return []


@pytest.fixture
def sequences(released: list[int]) -> Sequences:
    sequences = Sequences(1000, released.append, max_sequences=10)
    assert sequences.meet("t", 1)
    return sequences


def test_deltas_add_up_to_the_text(sequences: Sequences) -> None:
    assert text(sequences.follow("t", whole(1, 5, 6))) == [5, 6]
    assert text(sequences.follow("t", delta(1, 3, 7))) == [5, 6, 7]
    assert text(sequences.follow("t", delta(1, 3))) == [5, 6, 7]
    assert text(sequences.follow("t", delta(1, 5, 8, 9))) == [5, 6, 7, 8, 9]
    assert sequences.tokens == 5


def test_tokens_sent_again_after_a_lost_answer_are_not_added_twice(sequences: Sequences) -> None:
    sequences.follow("t", whole(1, 5, 6))
    sequences.follow("t", delta(1, 4, 7, 8))
    assert text(sequences.follow("t", delta(1, 5, 7, 8, 9))) == [5, 6, 7, 8, 9]


def test_a_whole_text_that_is_sent_again_goes_on(sequences: Sequences, released: list[int]) -> None:
    """Its worker didn't wait for the answer."""
    before = sequences.follow("t", whole(1, 5, 6))
    after = sequences.follow("t", whole(1, 5, 6, 7))
    assert after is before and text(after) == [5, 6, 7] and (sequences.tokens, released) == (3, [])
    # Another text, or another request's, is a new one.
    for item in (whole(1, 5, 7), replace(whole(1, 5, 7, 8), namespace="mine"), replace(whole(1, 5), namespace="mine")):
        after = sequences.follow("t", item)
        assert after is not before and text(after) == item.tokens
        before = after
    assert len(sequences) == 1 and len(released) == 3


@pytest.mark.parametrize(
    "item",
    [
        delta(2, 1, 5),  # never heard of
        delta(1, 5, 9),  # a gap
        delta(1, 1),  # shorter than known
        delta(1, 4, 99, 8),  # overlaps, and differs
        delta(1, 3, 5, 6, 7, 8),  # more tokens than it is long
        delta(1, 4, 2**40),  # no token id
        delta(1, 4, -1),
        whole(1, 2**31),
        ProposeItem(sequence_id=1, committed=7, tokens=[1], first=True),  # whole, and not as long as it says
    ],
)
def test_what_does_not_fit_is_unknown_and_forgotten(
    sequences: Sequences, released: list[int], item: ProposeItem
) -> None:
    sequences.follow("t", whole(1, 5, 6, 7))
    assert sequences.follow("t", item) is None
    if item.sequence_id == 1:
        assert (len(sequences), sequences.tokens, released) == (0, 0, [1])
        assert text(sequences.follow("t", whole(1, 5, 6, 7, 8))) == [5, 6, 7, 8]


def test_a_new_epoch_of_a_worker_starts_with_nothing(sequences: Sequences, released: list[int]) -> None:
    sequences.follow("t", whole(1, 5, 6))
    assert sequences.meet("t", 2)
    assert (len(sequences), sequences.tokens, released) == (0, 0, [1])
    assert sequences.follow("t", delta(1, 3, 7)) is None
    assert not sequences.meet("t", 1)


def test_workers_may_use_the_same_ids(sequences: Sequences) -> None:
    sequences.meet("u", 9)
    one, other = sequences.follow("t", whole(1, 5)), sequences.follow("u", whole(1, 6))
    assert one and other and one.text.text_id != other.text.text_id
    sequences.drop_worker("t")
    assert text(sequences.follow("u", delta(1, 2, 7))) == [6, 7]
    assert sequences.workers() == ["u"]


def test_a_sequence_sent_whole_again_is_a_new_text(sequences: Sequences, released: list[int]) -> None:
    first = sequences.follow("t", whole(1, 5, 6))
    second = sequences.follow("t", whole(1, 8))
    assert first and second and first.text.text_id != second.text.text_id
    assert released == [first.text.text_id]


def test_when_tokens_run_out_the_least_recently_used_lose_their_text_and_stay_known(
    sequences: Sequences, released: list[int]
) -> None:
    for n in range(4):
        sequences.follow("t", whole(n, *range(300)))
    sequences.follow("t", delta(0, 301, 1))
    sequences.make_room()
    assert sequences.tokens <= 1000
    assert released == [2]  # the second: the first was used since
    muted = sequences.follow("t", delta(1, 301, 1))
    assert muted is not None and muted.muted and muted.committed == 301
    assert sequences.follow("t", delta(1, 303, 1)) is None


def test_one_giant_does_not_push_out_the_others(sequences: Sequences) -> None:
    sequences.follow("t", whole(1, *range(300)))
    giant = sequences.follow("t", whole(2, *range(900)))
    sequences.make_room()
    assert giant is not None and giant.muted
    assert text(sequences.follow("t", delta(1, 300))) == list(range(300))


def test_when_there_are_too_many_sequences_the_least_recently_used_are_forgotten(
    sequences: Sequences,
) -> None:
    for n in range(15):
        sequences.follow("t", whole(n, 1))
    sequences.make_room()
    assert len(sequences) == 10
    assert sequences.follow("t", delta(4, 2, 1)) is None
    assert sequences.follow("t", delta(5, 2, 1)) is not None


def test_forgetting_what_is_not_known_is_fine(sequences: Sequences) -> None:
    sequences.forget("t", 12345)
    sequences.drop_worker("nobody")


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_the_counts_add_up(seed: int) -> None:
    chance = random.Random(seed)
    living: set[int] = set()
    sequences = Sequences(500, living.discard, max_sequences=20)
    for step in range(2000):
        worker = chance.choice("ab")
        if not sequences.meet(worker, 1 + step // 700):
            continue
        item = ProposeItem(
            sequence_id=chance.randrange(30),
            committed=chance.randrange(40),
            tokens=[1] * chance.randrange(40),
            first=chance.random() < 0.5,
        )
        match chance.randrange(12):
            case 0:
                sequences.forget(worker, item.sequence_id)
            case 1:
                sequences.drop_worker(worker)
            case _:
                sequence = sequences.follow(worker, item)
                if sequence and not sequence.muted:
                    living.add(sequence.text.text_id)
                sequences.make_room()
        held = [one for one in sequences._by_use.values() if not one.muted]
        assert sequences.tokens == sum(len(one.text.tokens) for one in held) <= 500
        assert living == {one.text.text_id for one in held}
        assert len(sequences) == sum(len(known.sequences) for known in sequences._workers.values()) <= 20


def test_a_sequence_that_ends_gives_its_whole_text_once(sequences: Sequences, released: list[int]) -> None:
    sequences.follow("t", whole(1, 5, 6))
    view = sequences.end("t", Ended(sequence_id=1, committed=4, tokens=[7, 8]))
    assert view is not None and view.tokens.tolist() == [5, 6, 7, 8]
    # Whoever learns from it still needs it.
    assert released == [] and len(sequences) == sequences.tokens == 0
    assert sequences.end("t", Ended(sequence_id=1, committed=4, tokens=[])) is None


def test_one_never_heard_of_may_come_whole_at_its_end(sequences: Sequences) -> None:
    ended = Ended(sequence_id=9, committed=3, tokens=[1, 2, 3], first=True, prompt_tokens=2, namespace="mine")
    view = sequences.end("t", ended)
    assert view is not None and (view.tokens.tolist(), view.prompt_tokens, view.namespace) == ([1, 2, 3], 2, "\nmine")
    assert len(sequences) == sequences.tokens == 0


def test_an_end_that_does_not_fit_the_text_is_nobody_s(sequences: Sequences, released: list[int]) -> None:
    sequence = sequences.follow("t", whole(1, 5, 6))
    assert sequence is not None
    assert sequences.end("t", Ended(sequence_id=1, committed=9, tokens=[7])) is None
    assert released == [sequence.text.text_id] and len(sequences) == sequences.tokens == 0


def test_a_prediction_takes_memory_like_text(sequences: Sequences) -> None:
    item = replace(whole(1, 5, 6), prediction=[7] * 100, namespace="mine", corpora=["c"], learn=False)
    sequence = sequences.follow("t", item)
    assert sequence is not None and sequences.tokens == 102
    view = sequence.text
    assert (view.prediction.tolist(), view.namespace, view.corpora, view.learn) == ([7] * 100, "\nmine", ["c"], False)
    sequences.forget("t", 1)
    assert sequences.tokens == 0
