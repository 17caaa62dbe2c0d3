"""How many more choices a streamer holds than others can have heard of.

What a streamer holds is told by the directory's table up to HEARD_AFTER late. Meanwhile the others are taken to have
grown as much as this one, so that all of them together keep a limit without talking to each other.

State and arithmetic only: the caller says what time it is.
"""

from __future__ import annotations

# Seconds until every streamer has heard what this one holds: it announces that, and then the table tells it.
HEARD_AFTER = 1.0


class Growth:
    def __init__(self) -> None:
        # The fewest in this span of HEARD_AFTER, and in the one before it.
        self._span = self._fewest = self._fewest_before = 0

    def note(self, held: int, now: float) -> int:
        """To be called before and after each change. Returns how many more are held than at some time in the last
        HEARD_AFTER seconds, or a little longer."""
        span = int(now / HEARD_AFTER)
        if span != self._span:
            self._fewest_before = self._fewest if span == self._span + 1 else held
            self._span, self._fewest = span, held
        self._fewest = min(self._fewest, held)
        return held - min(self._fewest, self._fewest_before)
