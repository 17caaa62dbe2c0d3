"""If a proposer doesn't answer, steps stop waiting for it; a probe now and then finds out whether it answers again.
Knows no sockets and no clock.

    closed ── silent for MISSES deadlines ──▶ open ── a probe is answered ──▶ closed
"""

from __future__ import annotations

import logging

log = logging.getLogger("specmesh.worker")

# Deadlines of silence after which the breaker opens.
MISSES = 3
# Seconds between probes while the breaker is open, and before a retry after a failure.
PROBE_SECONDS = 0.5
RETRY_SECONDS = 0.02


class CircuitBreaker:
    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        # Seconds that requests have been open without an answer.
        self._silence = 0.0
        self._not_before = 0.0

    @property
    def open(self) -> bool:
        """Whether steps no longer wait for the proposer."""
        # Silence is a sum of floats: three thirds must count as one.
        return self._silence + 1e-6 >= MISSES * self._deadline

    def allows(self, now: float) -> bool:
        """Whether a request may be sent."""
        return now >= self._not_before

    def sent(self, now: float) -> None:
        if self.open:
            self._not_before = now + PROBE_SECONDS

    def answered(self) -> None:
        self._silence = self._not_before = 0.0

    def silent(self, seconds: float, now: float) -> None:
        """A request was given up after `seconds`. Time is counted, not requests: otherwise a few short waits would give
        up a proposer that is only a little slower."""
        was_open = self.open
        self._silence += seconds
        if self.open and not was_open:
            log.warning("the proposer was silent for %d deadlines: going on without it", MISSES)
            self._not_before = now + PROBE_SECONDS

    def failed(self, now: float) -> None:
        """The proposer died, restarted or refused."""
        self._not_before = now + (PROBE_SECONDS if self.open else RETRY_SECONDS)
