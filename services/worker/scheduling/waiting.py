"""Requests that wait, in the order in which they are to be let in. Cheap with thousands of them.

Some wait for a place, in a queue; some wait for a text that another sequence is computing just now, behind that
sequence, and come back into the queue when it is there. Knows no pages and no steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from services.worker.scheduling.sequence import Sequence

Item = TypeVar("Item")
# Holes in a heap that aren't worth sweeping out.
FEW_HOLES = 32


class Queue(Generic[Item]):
    """Items by their keys, the smallest first; each may leave from anywhere.

    What leaves from the middle leaves a hole, which is dropped when it comes up, or with all others once they are
    more than the items: every call costs the logarithm of the length, now and then a sweep that many calls paid.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int]] = []
        self.items: dict[int, Item] = {}
        self._tickets: dict[Item, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self.items)

    def __contains__(self, item: Item) -> bool:
        return item in self._tickets

    def __iter__(self) -> Iterator[Item]:
        """In order. Costs a sort: for tests and for the end of everything."""
        return iter([self.items[ticket] for _, ticket in sorted(self._heap) if ticket in self.items])

    def put(self, key: Any, item: Item) -> None:
        assert item not in self._tickets, "an item stands in a queue once"
        self._next += 1
        self.items[self._next] = item
        self._tickets[item] = self._next
        heapq.heappush(self._heap, (key, self._next))

    def remove(self, item: Item) -> None:
        ticket = self._tickets.pop(item)
        del self.items[ticket]
        if len(self._heap) > 2 * len(self.items) + FEW_HOLES:
            self._heap = [entry for entry in self._heap if entry[1] in self.items]
            heapq.heapify(self._heap)

    def first(self) -> tuple[Any, Item] | None:
        heap = self._heap
        while heap:
            key, ticket = heap[0]
            if ticket in self.items:
                return key, self.items[ticket]
            heapq.heappop(heap)
        return None


class Waiting:
    def __init__(self) -> None:
        self._queue: Queue[Sequence] = Queue()
        # By the sequence whose text they wait for: those behind it, by how much of that text they need.
        self._behind: dict[Sequence, Queue[Sequence]] = {}
        self._leader: dict[Sequence, Sequence] = {}

    def __len__(self) -> int:
        return len(self._queue) + len(self._leader)

    def __bool__(self) -> bool:
        # Asked in each step.
        return bool(self._leader or self._queue.items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(sorted([*self._queue, *self._leader], key=_order))

    def put(self, sequence: Sequence) -> None:
        self._queue.put(sequence.order, sequence)

    def first(self) -> Sequence | None:
        """Who is to be let in next. Those behind a leader aren't looked at."""
        found = self._queue.first()
        return None if found is None else found[1]

    def remove(self, sequence: Sequence) -> None:
        leader = self._leader.pop(sequence, None)
        if leader is None:
            self._queue.remove(sequence)
            return
        self._behind[leader].remove(sequence)
        if not self._behind[leader]:
            del self._behind[leader]

    def step_behind(self, sequence: Sequence, leader: Sequence, needed: int) -> None:
        """Out of the queue until `leader` has computed `needed` tokens of its text, or leaves."""
        self._queue.remove(sequence)
        self._leader[sequence] = leader
        self._behind.setdefault(leader, Queue()).put(needed, sequence)

    def leader_is_at(self, leader: Sequence, computed: int) -> None:
        """Those who need no more than this are back in the queue, at their places."""
        behind = self._behind.get(leader) if self._behind else None
        while behind and (first := behind.first()) is not None and first[0] <= computed:
            self.remove(first[1])
            self.put(first[1])

    def leader_left(self, leader: Sequence) -> None:
        for sequence in self._behind.pop(leader, ()):
            del self._leader[sequence]
            self.put(sequence)

    def check_empty(self) -> None:
        assert not len(self) and not self._behind, "nobody waits"


def _order(sequence: Sequence) -> tuple[float, int]:
    return sequence.order
