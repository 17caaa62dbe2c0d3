"""How often somebody is called who doesn't answer."""

from __future__ import annotations

# From one attempt to the next.
FIRST_DELAY = 0.01
LONGEST_DELAY = 0.5


class Pace:
    """Seconds from one attempt to connect to the next: longer and longer, and from the beginning after a success."""

    def __init__(self) -> None:
        self._delay = FIRST_DELAY

    def next(self) -> float:
        delay, self._delay = self._delay, min(2 * self._delay, LONGEST_DELAY)
        return delay

    def reset(self) -> None:
        self._delay = FIRST_DELAY
