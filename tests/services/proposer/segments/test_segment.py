"""Segments by brute force: what is built and merged is in order, and guesses are what counting everywhere says."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from segment_problems import _order, problems, read_texts

from services.proposer.fast.drafting.records import DRAFT
from services.proposer.segments.loops import VOTERS, guess
from services.proposer.segments.segment import Segment, merge

Texts = list[list[int]]
Build = Callable[..., Segment]
LEAST = 0.1


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def built(texts: Sequence[Sequence[int]], depth: int = 64) -> Segment:
        return Segment.build(texts, tmp_path / f"{len(list(tmp_path.iterdir()))}.segment", depth=depth)

    return built


class Guess(NamedTuple):
    tokens: list[int]
    ratios: list[float]
    score: float
    matched: int


NOTHING = Guess([], [], 0.0, 0)


def guessed(
    segment: Segment, context: Sequence[int], longest: int = 8, factor: float = 1.0, least: float = LEAST
) -> Guess:
    drafts = np.zeros(2, DRAFT)
    drafts["tokens"], drafts["shares"] = -9, np.nan
    guess(segment.address, np.array(context, np.int32), longest, factor, 0.0, least, drafts)
    tokens, shares, drafted = drafts[0]["tokens"], drafts[0]["shares"], int(drafts[0]["count"])
    assert (tokens[longest:] == -9).all() and np.isnan(shares[longest:]).all()
    score, matched = float(drafts[0]["score"]), int(drafts[0]["matched"])
    return Guess(tokens[:drafted].tolist(), shares[:drafted].tolist(), score, matched)


# By looking everywhere ----------------------------------------------------------------------------------------


def occurrences(texts: Texts, context: list[int]) -> list[tuple[int, int]]:
    """(text, place behind it), in the order in which they were said."""
    size = len(context)
    return [
        (number, at + size)
        for number, text in enumerate(texts)
        for at in range(len(text) - size + 1)
        if text[at : at + size] == context
    ]


def walked(texts: Texts, voters: list[tuple[int, int]], budget: int, least: float) -> tuple[list[int], list[float]]:
    tokens: list[int] = []
    ratios: list[float] = []
    prob = 1.0
    while voters and len(tokens) < budget:
        says = [(texts[number][at], (number, at)) for number, at in voters if at < len(texts[number])]
        counts = Counter(token for token, _ in says)
        latest = dict(says)
        if not counts:
            break
        token = max(counts, key=lambda each: (counts[each], latest[each]))
        prob *= counts[token] / len(voters)
        if prob < least:
            break
        tokens.append(token)
        ratios.append(counts[token] / len(voters))
        voters = [(number, at + 1) for said, (number, at) in says if said == token]
    return tokens, ratios


def expected(
    texts: Texts, context: Sequence[int], longest: int = 8, factor: float = 1.0, least: float = LEAST, depth: int = 64
) -> Guess:
    best = NOTHING
    seen = 0
    for matched in range(min(len(context), depth), 0, -1):
        voters = occurrences(texts, list(context[-matched:]))
        if len(voters) == seen:
            continue
        seen = len(voters)
        tokens, ratios = walked(texts, voters, min(longest, int(matched * factor)), least)
        score = float(np.cumprod(ratios).sum())
        if score > best.score + 1e-9:
            best = Guess(tokens, ratios, score, matched)
    return best


def same(seen: Guess, wanted: Guess) -> bool:
    """Sums may be rounded otherwise."""
    return (
        seen.tokens == wanted.tokens
        and seen.matched == wanted.matched
        and seen.ratios == wanted.ratios
        and seen.score == pytest.approx(wanted.score)
    )


def some_texts(chance: random.Random, count: int, longest: int, alphabet: int) -> Texts:
    """Half of what is in them has been said before."""
    texts: Texts = []
    said = [0]
    for _ in range(count):
        text: list[int] = []
        while len(text) < chance.randint(0, longest):
            if chance.random() < 0.4:
                at = chance.randrange(len(said))
                text += said[at : at + chance.randint(1, 12)]
            else:
                text.append(chance.randrange(alphabet))
        said += text
        texts.append(text)
    return texts


# Guesses ------------------------------------------------------------------------------------------------------


def test_what_followed_most_often_is_drafted_as_far_as_the_context_is_worth(build: Build) -> None:
    segment = build([[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [9, 2, 3, 7]])
    # After "1 2 3" it was always 4; then 5 or 6, and the last one said wins.
    assert guessed(segment, [1, 2, 3]) == Guess([4, 6], [1.0, 0.5], 1.5, 3)
    assert guessed(segment, [1, 2, 3], longest=1) == Guess([4], [1.0], 1.0, 3)


def test_the_end_of_a_text_is_a_voter_that_says_nothing(build: Build) -> None:
    segment = build([[1, 2], [1, 2], [1, 2, 3]])
    assert guessed(segment, [1, 2]) == Guess([3], [1 / 3], 1 / 3, 2)
    assert guessed(segment, [1, 2], least=0.4) == NOTHING


def test_texts_are_never_crossed(build: Build) -> None:
    segment = build([[1, 2], [3, 4]])
    assert guessed(segment, [1, 2]) == NOTHING
    # "2 3" is not in any text: only "3" matches.
    assert guessed(segment, [2, 3]).matched == 1


@pytest.mark.parametrize("texts", [[], [[]], [[], []], [[5]], [[], [5], []]])
def test_hardly_any_text_is_a_segment_too(build: Build, tmp_path: Path, texts: Texts) -> None:
    segment = build(texts)
    assert problems(segment) == []
    assert [text.tolist() for text in read_texts(segment)] == texts
    assert (segment.texts, segment.tokens) == (len(texts), sum(map(len, texts)))
    for context in ([], [5], [7], [5, 5]):
        assert guessed(segment, context) == NOTHING
    merged = merge([segment, segment], tmp_path / "merged")
    assert problems(merged) == []
    assert [text.tolist() for text in read_texts(merged)] == texts + texts


def test_a_context_of_no_tokens_or_with_a_separator_matches_nothing_there(build: Build) -> None:
    segment = build([[1, 2, 3], [1, 2, 3]])
    assert guessed(segment, []) == NOTHING
    assert guessed(segment, [-1]) == NOTHING
    assert guessed(segment, [-1, 1]).matched == 1
    assert guessed(segment, [1, 2], longest=0) == NOTHING


@pytest.mark.parametrize("alphabet", [1, 2, 4])
@pytest.mark.parametrize("depth", [1, 2, 5, 64])
def test_places_stand_as_plain_sorting_puts_them_and_what_stands_elsewhere_is_found(
    build: Build, alphabet: int, depth: int
) -> None:
    """The lists are written out here: whoever looks for a wrong order compares whole arrays and might overlook one."""
    chance = random.Random(alphabet * 100 + depth)
    wrong = 0
    for _ in range(40):
        segment = build(some_texts(chance, chance.randint(1, 5), 12, alphabet), depth)
        text, positions = segment.sections()

        def key(place: int, text: Sequence[int] = text.tolist()) -> tuple[list[int], int]:
            begin = max(at for at in range(place) if text[at] == -1)
            return list(text[begin + 1 : place + 1])[::-1][:depth], place

        assert positions.tolist() == sorted(np.flatnonzero(text != -1).tolist(), key=key)
        for _ in range(5):
            moved = chance.sample(positions.tolist(), len(positions))
            told = [f"{one} stands before {other}" for one, other in pairwise(moved) if key(one) > key(other)]
            assert sorted(_order(text, np.array(moved, np.int32), depth)) == sorted(told)
            wrong += bool(told)
    assert wrong > 100


def test_token_ids_may_be_as_large_as_they_can(build: Build, tmp_path: Path) -> None:
    large = 2**31 - 1
    segment = build([[large, 0, large, large], [0, large, large]])
    assert problems(segment) == []
    assert problems(merge([segment, segment], tmp_path / "merged")) == []
    assert guessed(segment, [0, large]).tokens == [large]
    with pytest.raises(ValueError):
        build([[1, -1, 2]])


@pytest.mark.parametrize("alphabet", [1, 2, 4, 30])
@pytest.mark.parametrize("depth", [1, 2, 5, 64])
def test_guesses_are_those_of_looking_everywhere(build: Build, alphabet: int, depth: int) -> None:
    chance = random.Random(alphabet * 100 + depth)
    compared = 0
    for _ in range(12):
        texts = some_texts(chance, chance.randint(1, 6), 5 if alphabet == 1 else 8 * alphabet, alphabet)
        segment = build(texts, depth)
        assert problems(segment) == []
        for _ in range(25):
            context = chance.choice(texts)[: chance.randint(0, 30)][-chance.randint(1, 90) :]
            context = context + [chance.randrange(alphabet + 1) for _ in range(chance.randint(0, 2))]
            factor, longest = chance.choice([0.5, 1.0, 4.0]), chance.randint(1, 16)
            # Beyond so many it is a sample.
            if not context or len(occurrences(texts, context[-1:])) > VOTERS:
                continue
            wanted = expected(texts, context, longest, factor, depth=depth)
            assert same(guessed(segment, context, longest, factor), wanted), (texts, context)
            compared += 1
    assert compared > 50


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=4),
    st.lists(st.integers(0, 2), max_size=10),
    st.sampled_from([1, 3, 64]),
)
def test_small_texts_hold_nothing_that_looking_everywhere_does_not_find(
    tmp_path_factory: pytest.TempPathFactory, texts: Texts, context: list[int], depth: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "small.segment"
    segment = Segment.build(texts, path, depth=depth)
    assert problems(segment) == []
    assert same(guessed(segment, context, 8, 4.0), expected(texts, context, 8, 4.0, depth=depth))
    segment.close()


def test_the_longest_match_is_found_wherever_it_is(build: Build) -> None:
    """Contexts of all lengths out of a long text."""
    chance = random.Random(5)
    texts = some_texts(chance, 40, 400, 50)
    assert sum(map(len, texts)) > 1200
    segment = build(texts)
    for _ in range(300):
        text = chance.choice([text for text in texts if len(text) > 70])
        at, size = chance.randrange(65, len(text) - 1), chance.randint(1, 64)
        # A token that is nowhere ends the match on the left; the only budget that brings anything is the longest one's.
        seen = guessed(segment, [777, *text[at - size : at]], 64, 64.0, least=0.0)
        wanted = expected(texts, [777, *text[at - size : at]], 64, 64.0, least=0.0)
        if len(occurrences(texts, text[at - 1 : at])) <= VOTERS:
            assert same(seen, wanted)
        assert seen.matched <= size and seen.tokens


def test_of_many_occurrences_the_votes_are_nearly_their_shares(build: Build) -> None:
    chance = random.Random(6)
    texts = [[chance.randrange(100, 200), 1, 2 if chance.random() < 0.7 else 3] for _ in range(5000)]
    seen = guessed(build(texts), [1])
    assert seen.tokens == [2] and seen.matched == 1
    assert seen.ratios[0] == pytest.approx(0.7, abs=0.25)


# Merging ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@pytest.mark.parametrize("alphabet", [1, 2, 20])
def test_a_merged_segment_is_the_one_that_is_built_at_once(
    build: Build, tmp_path: Path, parts: int, alphabet: int
) -> None:
    chance = random.Random(parts * 10 + alphabet)
    for depth in (1, 3, 64):
        groups = [some_texts(chance, chance.randint(0, 5), 150, alphabet) for _ in range(parts)]
        together = build([text for group in groups for text in group], depth)
        merged = merge([build(group, depth) for group in groups], tmp_path / "merged")
        assert problems(merged) == []
        for one, other in zip(merged.sections(), together.sections(), strict=True):
            np.testing.assert_array_equal(one, other)
        assert merged.texts == together.texts
        for path in tmp_path.iterdir():
            path.unlink()


def test_merging_goes_in_slices_and_says_how_far_it_is(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.proposer.segments.segment._SLICE", 100)
    texts = some_texts(random.Random(8), 10, 100, 5)
    seen = []
    merged = merge([build(texts[:5]), build(texts[5:])], tmp_path / "merged", lambda *told: seen.append(told))
    total = merged.tokens
    assert seen == [*((done, total) for done in range(0, total, 100)), (total, total)]
    assert problems(merged) == []
    assert [text.tolist() for text in read_texts(merged)] == texts


def test_a_merge_that_is_called_off_leaves_nothing(build: Build, tmp_path: Path) -> None:
    def call_off(done: int, total: int) -> None:
        raise InterruptedError

    segment = build([[1, 2, 3]])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InterruptedError):
        merge([segment, segment], tmp_path / "merged", call_off)
    assert sorted(tmp_path.iterdir()) == before


def test_segments_of_two_namespaces_are_never_merged(tmp_path: Path) -> None:
    ours = Segment.build([[1]], tmp_path / "a", "v", "ours")
    theirs = Segment.build([[1]], tmp_path / "b", "v", "theirs")
    other_words = Segment.build([[1]], tmp_path / "c", "w", "ours")
    for other in (theirs, other_words):
        with pytest.raises(ValueError):
            merge([ours, other], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    with pytest.raises(ValueError):
        merge([], tmp_path / "merged")


def test_texts_that_repeat_themselves_are_sorted_and_merged_like_others(build: Build, tmp_path: Path) -> None:
    texts = [[7] * 3000, [7] * 500 + [8], [1, 2] * 700, [7] * 64, [7] * 65, [7] * 63]
    segment = build(texts)
    assert problems(segment) == []
    merged = merge([segment, build(texts[::-1])], tmp_path / "merged")
    assert problems(merged) == []
    assert guessed(merged, [7] * 200, 8).tokens == [7] * 8
    assert guessed(merged, [5, 1, 2, 1], 3) == Guess([2, 1, 2], [1.0, 1.0, 1.0], 3.0, 3)


# Reading --------------------------------------------------------------------------------------------------


def test_texts_are_read_as_they_were_given(build: Build) -> None:
    texts = some_texts(random.Random(9), 30, 60, 9)
    read = read_texts(build([array("i", text) for text in texts]))
    assert all(isinstance(text, array) for text in read)
    assert [text.tolist() for text in read] == texts


def test_nothing_is_found_in_a_closed_segment(build: Build) -> None:
    segment = build([[1, 2, 3]])
    address = segment.address
    segment.close()
    assert guessed(segment, [1, 2]) == NOTHING
    assert segment.address == address
