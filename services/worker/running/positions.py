"""Counts by position in a draft, kept so that a draft costs one addition, however long: by where each one ended.

    reached    0 2 0 1      two ended behind position 1, one behind position 3 (positions count from 1)
    counts     3 3 1 ...    so many had a token at each position: sums from the right

Read by other threads while it grows: what they see is how it was, or how it will be.
"""

from __future__ import annotations

from itertools import accumulate


class Positions:
    __slots__ = ("_reached",)

    def __init__(self) -> None:
        self._reached: list[int] = []

    def __bool__(self) -> bool:
        return len(self._reached) > 1

    def reach(self, length: int) -> None:
        """One more at each of the first `length` positions."""
        reached = self._reached
        if length >= len(reached):
            reached += [0] * (length + 1 - len(reached))
        reached[length] += 1

    def add(self, position: int) -> None:
        """One more at this position, counted from 1, alone: of a tree, where a position has several."""
        self.reach(position)
        self._reached[position - 1] -= 1

    def counts(self) -> list[int]:
        """From position 1 on."""
        return list(accumulate(reversed(self._reached[1:])))[::-1]
