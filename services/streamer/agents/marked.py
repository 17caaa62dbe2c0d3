"""Calls that stand behind markers in a text, as most families write them.

    text <marker> body text <marker> body text
    content       calls     content

Spaces beside a call are no content, but for those between two texts. Knows no body: `begin` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from services.streamer.agents.parts import CallBody, Part

# Makes the body behind a marker. It is given the number of calls so far, and the marker with the spaces before it,
# which are content if the body is no call.
Begin = Callable[[int, str], CallBody]


class MarkedCalls:
    """`markers`: each with what begins behind it; None: nothing does, the marker is left out. `at_start`: characters
    with which a body begins that has no marker, at the beginning of the text."""

    def __init__(self, markers: Mapping[str, Begin | None], at_start: str = "", begin: Begin | None = None) -> None:
        self._markers = markers
        self._at_start = at_start
        self._begin = begin
        self._text = ""
        self._body: CallBody | None = None
        self._calls = 0
        self._behind_a_call = False
        self._shown = False  # some content

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        self._text += text
        while True:
            if self._body is None:
                more = self._outside(parts)
            else:
                more = self._inside(self._body, parts)
            if not more:
                return parts

    def flush(self) -> list[Part]:
        if self._body is not None:
            return self._body.flush()
        rest, self._text = self._text, ""
        return [rest] if rest and not (self._behind_a_call and rest.isspace()) else []

    def _outside(self, parts: list[Part]) -> bool:
        """Whether there is more to do with the text."""
        if self._at_start and (first := self._text.lstrip()[:1]):
            at_start, self._at_start = self._at_start, ""
            if first in at_start and self._begin is not None:
                self._body = self._begin(self._calls, "")
                return True
        place, marker = self._first_marker()
        if marker:
            if before := self._text[:place].rstrip():
                self._show(before, parts)
            end = place + len(marker)
            spaced, self._text = self._text[len(before) : end], self._text[end:]
            self._behind_a_call = True
            if (begin := self._markers[marker]) is not None:
                self._body = begin(self._calls, spaced)
            return bool(self._text)
        sure = len(self._text) - max(unfinished(self._text, each) for each in self._markers)
        if shown := self._text[:sure].rstrip():
            self._text = self._text[len(shown) :]
            self._show(shown, parts)
            self._behind_a_call = False
        return False

    def _show(self, text: str, parts: list[Part]) -> None:
        parts.append(text.lstrip() if self._behind_a_call and not self._shown else text)
        self._shown = True

    def _first_marker(self) -> tuple[int, str]:
        found = [(place, each) for each in self._markers if (place := self._text.find(each)) >= 0]
        return min(found, default=(-1, ""))

    def _inside(self, body: CallBody, parts: list[Part]) -> bool:
        text, self._text = self._text, ""
        more, behind = body.feed(text)
        parts += more
        if behind is None:
            return False
        self._calls += body.calls
        self._shown |= any(isinstance(each, str) for each in more)
        self._behind_a_call = not self._shown or bool(body.calls)
        self._body = None
        self._text = behind
        return bool(behind)


class Closed:
    """A body and the marker behind it, which may be missing."""

    def __init__(self, body: CallBody, closer: str) -> None:
        self._body = body
        self._closer = closer
        self._over = False
        self._held = ""

    def feed(self, text: str) -> tuple[list[Part], str | None]:
        parts: list[Part] = []
        if not self._over:
            parts, behind = self._body.feed(text)
            if behind is None:
                return parts, None
            if not self._body.calls:
                return parts, behind
            self._over, text = True, behind
        self._held += text
        begin = self._held.lstrip()
        if begin.startswith(self._closer):
            return parts, begin[len(self._closer) :]
        return parts, None if self._closer.startswith(begin) else self._held

    def flush(self) -> list[Part]:
        return [] if self._over else self._body.flush()

    @property
    def calls(self) -> int:
        return self._body.calls


def unfinished(text: str, marker: str) -> int:
    """Characters at the end of the text that may become the marker."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
