"""The delay between two attempts to connect."""

from __future__ import annotations

FIRST_DELAY = 0.01  # s
LONGEST_DELAY = 0.5  # s


class Pace:
    """Doubles with every attempt, and starts anew after a success."""

    def __init__(self) -> None:
        self._delay = FIRST_DELAY

    def next(self) -> float:
        delay, self._delay = self._delay, min(2 * self._delay, LONGEST_DELAY)
        return delay

    def reset(self) -> None:
        self._delay = FIRST_DELAY
