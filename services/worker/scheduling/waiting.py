"""Waiting requests, in the order of admission. Cheap with thousands of them.

Most wait in a queue. Those that need a prefix that another sequence (the leader) is computing wait behind it, and
return to the queue when it is computed. Knows no pages and no steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from services.worker.scheduling.sequence import Sequence

Item = TypeVar("Item")
# Holes in a heap that aren't worth removing.
FEW_HOLES = 32


class Queue(Generic[Item]):
    """A priority queue, smallest key first, from which any item can be removed.

    A removed item leaves a hole in the heap, which is dropped when it comes up, or with all others once holes outnumber
    items. Amortized cost: the logarithm of the length.
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
        """In order. Costs a sort: for tests and for failing all requests."""
        return iter([self.items[ticket] for _, ticket in sorted(self._heap) if ticket in self.items])

    def put(self, key: Any, item: Item) -> None:
        assert item not in self._tickets, "an item is in a queue once"
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
        # By leader: the sequences behind it, keyed by how many of its tokens they need.
        self._behind: dict[Sequence, Queue[Sequence]] = {}
        self._leader: dict[Sequence, Sequence] = {}

    def __len__(self) -> int:
        return len(self._queue) + len(self._leader)

    def __bool__(self) -> bool:
        # Called in each step.
        return bool(self._leader or self._queue.items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(sorted([*self._queue, *self._leader], key=_order))

    def put(self, sequence: Sequence) -> None:
        self._queue.put(sequence.order, sequence)

    def first(self) -> Sequence | None:
        """The next sequence to admit. Those behind a leader are left out."""
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
        """Take it out of the queue until `leader` has computed `needed` tokens of its text, or stops running."""
        self._queue.remove(sequence)
        self._leader[sequence] = leader
        self._behind.setdefault(leader, Queue()).put(needed, sequence)

    def leader_is_at(self, leader: Sequence, computed: int) -> None:
        """Those that need no more than this return to the queue, at their places."""
        behind = self._behind.get(leader) if self._behind else None
        while behind and (first := behind.first()) is not None and first[0] <= computed:
            self.remove(first[1])
            self.put(first[1])

    def leader_left(self, leader: Sequence) -> None:
        for sequence in self._behind.pop(leader, ()):
            del self._leader[sequence]
            self.put(sequence)

    def check_empty(self) -> None:
        assert not len(self) and not self._behind, "no request waits"


def _order(sequence: Sequence) -> tuple[float, int]:
    return sequence.order
