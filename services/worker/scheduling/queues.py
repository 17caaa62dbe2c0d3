"""A priority queue from which any item can be removed. Cheap with thousands of them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

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
