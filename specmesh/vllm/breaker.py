"""A proposer that doesn't answer is waited for no longer; a question now and then finds out whether it is back.

    closed ── MISSES questions unanswered ──▶ open ── one is answered ──▶ closed

Pure: knows no clock and no sockets.
"""

from __future__ import annotations

MISSES = 3
# Seconds between questions while it is open; and before another connection is made.
PROBE, RETRY = 0.5, 0.02


class Breaker:
    def __init__(self) -> None:
        self._missed = 0
        self._not_before = 0.0

    @property
    def open(self) -> bool:
        return self._missed >= MISSES

    def allows(self, now: float) -> bool:
        return now >= self._not_before

    def missed(self, now: float) -> None:
        self._missed += 1
        self._not_before = now + (PROBE if self.open else RETRY)

    def answered(self) -> None:
        self._missed = 0
        self._not_before = 0.0
