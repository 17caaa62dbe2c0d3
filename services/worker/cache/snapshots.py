"""States behind the ends of pages, kept so that texts with the same beginning go on there: for models whose layers keep
a state of each sequence beside its pages (Facts.states). Pages alone are of no use to those.

    key of a page (keys.py) ─▶ where the state behind it is kept

The least recently used one makes place. Knows no sequences and no values.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class Snapshots:
    def __init__(self, first: int, count: int) -> None:
        """`first` of their places: those before it are of running sequences."""
        self._places = range(first, first + count)
        self._free = list(self._places)
        self._place_of: OrderedDict[bytes, int] = OrderedDict()

    def longest(self, keys: Sequence[bytes]) -> int:
        """How many of these, in the order of a text, end with one that has a state; 0: none has."""
        return next((count for count in range(len(keys), 0, -1) if keys[count - 1] in self._place_of), 0)

    def use(self, key: bytes) -> int:
        self._place_of.move_to_end(key)
        return self._place_of[key]

    def enter(self, key: bytes) -> int:
        """The place that its state is to be copied to."""
        if key not in self._place_of:
            self._place_of[key] = self._free.pop() if self._free else self._place_of.popitem(last=False)[1]
        return self.use(key)

    def forget(self, keys: Iterable[bytes]) -> None:
        self._free += [self._place_of.pop(key) for key in keys if key in self._place_of]

    def clear(self) -> None:
        self.forget(list(self._place_of))

    def check(self) -> None:
        assert sorted([*self._free, *self._place_of.values()]) == list(self._places), "each place is free or has a key"
