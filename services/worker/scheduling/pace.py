"""The most rows that a step may have on a CPU, where each row costs time. A running stream gets its next token when
the whole step is done, and a worker that completes no step for `stale_after` seconds counts as stuck."""

from __future__ import annotations

# Rows of a step as long as nothing is known of their time, and the fewest that prompts get in any case. What fewer take
# says little of more: mostly the weights are read.
UNKNOWN, LEAST = 64, 16
# What a step weighs beside those before it.
NEW = 0.3


class Pace:
    def __init__(self, longest: float) -> None:
        """`longest`: seconds of a step."""
        self._longest = longest
        self._row = 0.0

    @property
    def rows(self) -> int:
        return int(self._longest / self._row) if self._row else UNKNOWN

    def took(self, rows: int, seconds: float) -> None:
        if rows >= LEAST and seconds > 0.0:
            row = seconds / rows
            self._row += (NEW if self._row else 1.0) * (row - self._row)
