"""How many requests may be sent to a worker again: a storm of deaths must not multiply the load of those that live.

Rule 1: of the last WINDOW seconds, further attempts are at most `floor` and SHARE of the first attempts.
Rule 2: only choices that have no token yet count and can be refused: their clients can send them again. A choice with
        tokens goes on, and there are never more of these than run.

State and a decision only: the caller says what time it is. It knows the choices of its own streamer, so the floor of a
mesh is that of each streamer together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

SHARE = 0.2
WINDOW = 10  # seconds
# The floor, of the choices that the mesh may hold: the death of a worker with few requests a second is no storm.
FLOOR = 0.25


class RetryBudget:
    """`refused` is called with each attempt that may not be made."""

    def __init__(self, floor: int = 64, refused: Callable[[], None] = lambda: None) -> None:
        self._floor = floor
        self._refused = refused
        # Of each second within the window: the second, first attempts, further ones.
        self._seconds: deque[list[int]] = deque()
        self._first = self._further = 0

    def first(self, now: float) -> None:
        """A choice is sent for the first time."""
        self._second(now)[1] += 1
        self._first += 1

    def again(self, now: float) -> bool:
        """Whether a choice without a token may be sent once more; if so, it is."""
        second = self._second(now)
        if self._further + 1 > self._floor + SHARE * self._first:
            self._refused()
            return False
        second[2] += 1
        self._further += 1
        return True

    def _second(self, now: float) -> list[int]:
        seconds, current = self._seconds, int(now)
        while seconds and seconds[0][0] <= current - WINDOW:
            _, first, further = seconds.popleft()
            self._first -= first
            self._further -= further
        if not seconds or seconds[-1][0] != current:
            seconds.append([current, 0, 0])
        return seconds[-1]
