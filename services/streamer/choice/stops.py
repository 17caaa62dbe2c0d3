"""Finds stop strings across token borders. Knows characters only.

The rule: generation stops at the stop string that is completed first; of several completed by the same
character, the longest. So the cut doesn't depend on how the text was split into tokens or messages.

    released text | held (a prefix of some stop string) | new text
                                                 ^ a match must end after here
"""

from __future__ import annotations


class StopMatcher:
    """Feed it text; it returns the text that can be sent. After a match `found` is the stop string."""

    __slots__ = ("_prefixes", "_stops", "found", "held")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        prefixes = {stop[:length] for stop in stops for length in range(1, len(stop))}
        self._prefixes = tuple(sorted(prefixes, key=len, reverse=True))
        self.held = ""
        self.found: str | None = None

    def feed(self, text: str, *, armed: bool = True) -> str:
        """The text that is now safe. While not `armed` (min_tokens) a stop string ending here does not count."""
        window = self.held + text
        if armed and (match := self._first_match(window)):
            start, self.found = match
            self.held = ""
            return window[:start]
        kept = self._unfinished(window)
        self.held = window[len(window) - kept :]
        return window[: len(window) - kept]

    def flush(self) -> str:
        held, self.held = self.held, ""
        return held

    def _first_match(self, window: str) -> tuple[int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = window.find(stop, max(0, len(self.held) - len(stop) + 1))
            if start >= 0:
                candidate = (start + len(stop), start, stop)
                best = candidate if best is None else min(best, candidate)
        return None if best is None else (best[1], best[2])

    def _unfinished(self, window: str) -> int:
        """Number of characters at the end that may become a stop string."""
        if window.endswith(self._prefixes):
            for prefix in self._prefixes:
                if window.endswith(prefix):
                    return len(prefix)
        return 0
