from __future__ import annotations

import random

import msgspec
import pytest

from services.proposer.store import policy
from services.proposer.store.files import StoredFile, total_tokens
from services.proposer.store.policy import Bounds

NOW = 1e6


def entry(name, tokens, age=0.0, space="a"):
    return StoredFile(name, space, "learned", "", tokens, 1, 10 * tokens, NOW - age)


def names(entries):
    return [one.file for one in entries]


def test_four_of_a_size_are_merged_and_three_are_not():
    segments = [entry(name, 2000) for name in "abc"] + [entry("large", 100_000)]
    assert policy.to_merge(segments, Bounds()) == []
    segments.append(entry("d", 3000))
    assert names(policy.to_merge(segments, Bounds())) == ["a", "b", "c", "d"]


def test_nothing_larger_than_allowed_is_made():
    segments = [entry(name, 500) for name in "abcdefghij"]
    assert len(policy.to_merge(segments, Bounds(max_tokens=6 * 2400))) == 4
    assert policy.to_merge(segments, Bounds(max_tokens=6 * 900)) == []


def test_when_there_are_too_many_the_two_smallest_are_merged():
    sizes = [1000, 4_000, 4_200, 16_000, 16_500, 60_000, 61_000, 300_000, 900_000]
    segments = [entry(str(size), size) for size in sizes]
    assert names(policy.to_merge(segments, Bounds())) == ["1000", "4000"]
    assert policy.to_merge(segments, Bounds(max_segments=9)) == []


@pytest.mark.parametrize("seed", range(20))
def test_however_segments_come_few_are_left_and_most_of_the_room_is_used(seed):
    chance = random.Random(seed)
    bounds = Bounds(max_tokens=60_000)
    segments = []
    fullest = 0
    for turn in range(300):
        segments.append(entry(str(turn), chance.randint(1, 4000), age=-turn))
        while some := policy.to_merge(segments, bounds):
            whole = policy.merged(some, f"{turn} merged", sum(one.tokens for one in some), 0)
            assert whole.tokens <= bounds.largest_segment
            segments = [one for one in segments if one not in some] + [whole]
        gone = policy.too_much(segments, bounds)
        segments = [one for one in segments if one not in gone]
        assert len(segments) <= bounds.max_segments
        assert total_tokens(segments) <= bounds.max_tokens
        fullest = max(fullest, total_tokens(segments))
    assert fullest > 0.6 * bounds.max_tokens


def test_the_oldest_goes_first():
    entries = [entry("new", 1, age=1), entry("old", 1, age=5), entry("older", 1, age=7)]
    assert names(policy.too_much(entries, Bounds(max_tokens=1))) == ["older", "old"]


def test_a_merged_one_has_the_mean_age_of_its_parts():
    whole = policy.merged([entry("a", 100, age=40), entry("b", 300)], "c", 400, 4000)
    assert (whole.born, whole.tokens, whole.bytes, whole.texts) == (NOW - 10, 400, 4000, 2)


def test_room_is_made_in_all_namespaces_the_oldest_first():
    of_b = [("b1", 60), ("b2", 40), ("b3", 20)]
    spaces = {
        "a": [entry("a1", 100, age=50), entry("a2", 100, age=1)],
        "b": [entry(name, 100, age, "b") for name, age in of_b],
    }
    assert names(policy.to_make_room(spaces, 5000)) == ["b1", "a1", "b2", "b3", "a2"]
    assert len(policy.to_make_room(spaces, 1500)) == 2
    assert policy.to_make_room(spaces, 0) == []


def test_corpora_stay_whatever_room_is_needed():
    corpus = msgspec.structs.replace(entry("c", 100, age=99), role="ready", corpus="notes")
    assert names(policy.to_make_room({"a": [corpus, entry("a1", 100)]}, 5000)) == ["a1"]
