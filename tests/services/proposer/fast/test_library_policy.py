from __future__ import annotations

import random

import pytest

from services.proposer.fast.library import policy as policy
from services.proposer.fast.library.manifest import Manifest, SegmentEntry
from services.proposer.fast.library.policy import HALF_LIFE, Bounds

NOW = 1e6


def entry(name, tokens, use=0.0, age=0.0):
    return SegmentEntry(name, tokens, 1, 10 * tokens, NOW - age, use, NOW)


def names(entries):
    return [one.file for one in entries]


def test_four_of_a_size_are_merged_and_three_are_not():
    manifest = Manifest([entry(name, 2000) for name in "abc"] + [entry("large", 100_000)])
    assert policy.to_merge(manifest, Bounds()) == []
    manifest.segments.append(entry("d", 3000))
    assert names(policy.to_merge(manifest, Bounds())) == ["a", "b", "c", "d"]


def test_nothing_larger_than_allowed_is_made():
    manifest = Manifest([entry(name, 500) for name in "abcdefghij"])
    assert len(policy.to_merge(manifest, Bounds(max_tokens=6 * 2400))) == 4
    assert policy.to_merge(manifest, Bounds(max_tokens=6 * 900)) == []


def test_when_there_are_too_many_the_two_smallest_are_merged():
    sizes = [1000, 4_000, 4_200, 16_000, 16_500, 60_000, 61_000, 300_000, 900_000]
    manifest = Manifest([entry(str(size), size) for size in sizes])
    assert names(policy.to_merge(manifest, Bounds())) == ["1000", "4000"]
    assert policy.to_merge(manifest, Bounds(max_segments=9)) == []


@pytest.mark.parametrize("seed", range(20))
def test_however_segments_come_few_are_left_and_most_of_the_room_is_used(seed):
    chance = random.Random(seed)
    bounds = Bounds(max_tokens=60_000)
    manifest = Manifest()
    fullest = 0
    for turn in range(300):
        manifest.segments.append(entry(str(turn), chance.randint(1, 4000), age=-turn))
        while some := policy.to_merge(manifest, bounds):
            whole = policy.merged_entry(some, f"{turn} merged", sum(one.tokens for one in some), 0, NOW)
            assert whole.tokens <= bounds.largest_segment
            manifest.segments = [one for one in manifest.segments if one not in some] + [whole]
        gone = policy.too_much(manifest, bounds, NOW)
        manifest.segments = [one for one in manifest.segments if one not in gone]
        assert len(manifest.segments) <= bounds.max_segments
        assert manifest.tokens() <= bounds.max_tokens
        fullest = max(fullest, manifest.tokens())
    assert fullest > 0.6 * bounds.max_tokens


def test_the_least_used_goes_first_then_the_oldest_and_the_newest_last():
    entries = [entry("newest", 1), entry("used", 1, use=100, age=9), entry("old", 1, age=5), entry("older", 1, age=7)]
    assert names(policy.by_worth(entries, NOW)) == ["older", "old", "used", "newest"]


def test_a_little_more_use_is_no_more_than_age():
    entries = [entry("newest", 1), entry("old", 1, use=110, age=9), entry("young", 1, use=100, age=5)]
    assert names(policy.by_worth(entries, NOW)) == ["old", "young", "newest"]


def test_use_is_forgotten_by_half():
    one = entry("a", 1, use=100)
    assert policy.use_now(one, NOW + HALF_LIFE) == pytest.approx(50)
    policy.add_use(one, 10, NOW + HALF_LIFE)
    assert policy.use_now(one, NOW + 2 * HALF_LIFE) == pytest.approx(30)


def test_a_clock_that_was_set_back_makes_nothing_more_worth():
    assert policy.use_now(entry("a", 1, use=100), NOW - 10 * HALF_LIFE) == 100


def test_a_merged_one_has_the_age_and_use_of_its_parts():
    whole = policy.merged_entry([entry("a", 100, use=3, age=40), entry("b", 300, use=4)], "c", 400, 4000, NOW)
    assert (whole.born, whole.use, whole.tokens, whole.bytes, whole.texts) == (NOW - 10, 7, 400, 4000, 2)


def test_room_is_made_in_all_namespaces_the_newest_of_each_last():
    manifests = {
        "a": Manifest([entry("a1", 100, age=50), entry("a2", 100, age=1)]),
        "b": Manifest([entry("b1", 100, age=70, use=50), entry("b2", 100, age=60), entry("b3", 100, age=2)]),
    }
    order = [file for _, file in ((name, one.file) for name, one in policy.to_make_room(manifests, 5000, NOW))]
    assert order == ["b2", "a1", "b1", "b3", "a2"]
    assert len(policy.to_make_room(manifests, 1500, NOW)) == 2
    assert policy.to_make_room(manifests, 0, NOW) == []
