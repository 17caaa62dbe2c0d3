"""Where states behind pages are kept, and which give way."""

from __future__ import annotations

import random

from services.worker.cache.snapshots import Snapshots

A, B, C, D = (bytes([number]) * 16 for number in range(4))


def test_the_longest_beginning_with_a_state_is_found() -> None:
    snapshots = Snapshots(8, 3)
    assert snapshots.longest([A, B, C]) == 0
    assert {snapshots.enter(A), snapshots.enter(C)} < {8, 9, 10}
    assert [snapshots.longest(keys) for keys in ([A, B, C], [A, B], [B, A], [B], [])] == [3, 1, 2, 0, 0]


def test_the_least_recently_used_one_gives_its_place() -> None:
    snapshots = Snapshots(0, 2)
    a, b = snapshots.enter(A), snapshots.enter(B)
    assert snapshots.use(A) == a
    assert snapshots.enter(C) == b
    assert snapshots.longest([B]) == 0 and snapshots.longest([A]) == 1
    # One that is entered again keeps its place.
    assert snapshots.enter(A) == a and snapshots.enter(D) == b
    snapshots.check()


def test_places_are_free_or_of_a_key_whatever_happens() -> None:
    source, snapshots = random.Random(3), Snapshots(5, 4)
    keys = [bytes([number]) * 16 for number in range(9)]
    for _ in range(500):
        key = source.choice(keys)
        source.choice([snapshots.enter, lambda key: snapshots.forget([key, B]), snapshots.enter])(key)
        snapshots.check()
    snapshots.clear()
    assert snapshots.longest(keys) == 0
    snapshots.check()
