"""How often somebody is called who doesn't answer, and waiting until he does."""

from __future__ import annotations

import time

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


class Redialled:
    """A blocking link's wire whose connection is made anew when it is over (zmq_wire.py, hatch_wire.py)."""

    now = staticmethod(time.monotonic)
    # When there may be another attempt.
    _retry_at: float

    def wait_until_open(self, timeout: float) -> bool:
        until = self.now() + timeout
        while not self._is_up():
            now = self.now()
            if now >= until:
                return False
            self._rest(max(0.0, min(until, self._retry_at) - now))
        return True

    def _is_up(self) -> bool:
        """Whether one can send; on the way another attempt is made, if it is time for one."""
        raise NotImplementedError

    def _rest(self, seconds: float) -> None:
        """Until something may have changed, no longer than that."""
        raise NotImplementedError
