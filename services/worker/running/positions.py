"""Counts by position in a draft. Only the end of each draft is counted, so that a draft costs one addition.

    reached    0 2 0 1      two ended after position 1, one after position 3 (positions count from 1)
    counts     3 1 1        tokens at positions 1, 2 and 3: sums of `reached` from the right

Other threads read it while it grows: they see the state before or after an addition.
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
        """One more at this position only, counted from 1: a tree may have several tokens at one position."""
        self.reach(position)
        self._reached[position - 1] -= 1

    def counts(self) -> list[int]:
        """From position 1 on."""
        return list(accumulate(reversed(self._reached[1:])))[::-1]
