"""Queues of thousands of requests."""

from __future__ import annotations

import random
from typing import Any

import pytest

from services.worker.scheduling.queues import FEW_HOLES, Queue


def drained(queue: Queue[Any]) -> list[Any]:
    found = []
    while (first := queue.first()) is not None:
        queue.remove(first[1])
        found.append(first[1])
    return found


def test_the_smallest_key_is_first_and_equal_ones_go_in_the_order_they_came() -> None:
    queue: Queue[str] = Queue()
    for key, item in ((3, "a"), (1, "b"), (3, "c"), (2, "d"), (1, "e")):
        queue.put(key, item)
    assert list(queue) == ["b", "e", "d", "a", "c"] == drained(queue)
    assert queue.first() is None and len(queue) == 0


def test_a_removed_item_can_be_added_under_another_key() -> None:
    queue: Queue[str] = Queue()
    queue.put(1, "a")
    queue.put(2, "b")
    queue.remove("a")
    queue.put(3, "a")
    assert "a" in queue and drained(queue) == ["b", "a"]


@pytest.mark.parametrize("seed", range(3))
def test_it_behaves_like_a_sorted_list(seed: int) -> None:
    chance, queue = random.Random(seed), Queue[int]()
    plain: dict[int, tuple[int, int]] = {}
    for item in range(3000):
        if plain and chance.random() < 0.48:
            gone = chance.choice(list(plain))
            queue.remove(gone)
            del plain[gone]
        else:
            key = chance.randrange(50)
            queue.put(key, item)
            plain[item] = (key, item)
        first = queue.first()
        assert (None if first is None else first[1]) == min(plain, key=lambda each: plain[each], default=None)
        assert len(queue) == len(plain)
    assert drained(queue) == sorted(plain, key=lambda each: plain[each])


def test_items_removed_from_the_middle_leave_no_memory_behind() -> None:
    queue: Queue[int] = Queue()
    queue.put(0, -1)
    for item in range(100_000):
        queue.put(item, item)
        queue.remove(item)
    assert len(queue._heap) <= FEW_HOLES + 3
