"""Whether a text has just said again what it had said before: the cheapest sign that a text draft may pay.

Asking the proposer costs as much as a step of a small model on a GPU takes, so there it can't be tried every few
tokens. This is a look at one's own text, of a microsecond.
"""

from __future__ import annotations

from collections.abc import Sequence

# Tokens that have to be the same; and how far back a text is looked at.
SAME, MOST = 3, 8192


class Repeats:
    __slots__ = ("_read", "_repeats", "_seen")

    def __init__(self) -> None:
        self._seen: set[tuple[int, ...]] = set()
        # Tokens of the text that were read.
        self._read = 0
        self._repeats = False

    def look(self, text: Sequence[int]) -> bool:
        """At a text that begins with the one of the last look."""
        end = len(text)
        if end == self._read or end < SAME:
            return self._repeats
        # A prompt with its first token, and whatever came while nobody looked, at once.
        fresh = text[max(0, self._read - SAME + 1, end - MOST) :]
        last = tuple(text[end - SAME :])
        self._seen.update(zip(fresh[:-1], fresh[1:-1], fresh[2:-1], strict=False))
        self._repeats = last in self._seen
        self._seen.add(last)
        self._read = end
        return self._repeats
