"""Calls that stand behind markers in a text, as most families write them.

    text <marker> body text <marker> body text
    content       calls     content

Spaces beside a call are no content, but for those between two texts. Knows no body: `begin` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from services.streamer.agents.held import Held
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
        # Outside of a body: white space, then what may be the beginning of a marker.
        self._held = Held()
        self._body: CallBody | None = None
        self._calls = 0
        self._behind_a_call = False
        self._shown = False  # some content

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        while text:
            text = self._outside(text, parts) if self._body is None else self._inside(self._body, text, parts)
        return parts

    def flush(self) -> list[Part]:
        if self._body is not None:
            parts: list[Part] = []
            self._pass_on(self._body.flush(), parts)
            return parts
        rest = self._held.take()
        return [rest] if rest and not (self._behind_a_call and rest.isspace()) else []

    def _outside(self, text: str, parts: list[Part]) -> str:
        """Content up to the next body. Returns the text that comes next."""
        held = self._held
        held.add(text)
        if self._at_start and held.begin:
            at_start, self._at_start = self._at_start, ""
            if held.begin[0] in at_start and self._begin is not None:
                self._body = self._begin(self._calls, "")
                return held.take()
        place, marker = self._first_marker(held.begin)
        if marker:
            return self._at_marker(place, marker, parts)
        sure = len(held.begin) - max(unfinished(held.begin, each) for each in self._markers)
        if shown := held.begin[:sure].rstrip():
            rest = held.begin[len(shown) :]
            self._show(held.take_spaces() + shown, parts)
            self._held = Held(rest)
            self._behind_a_call = False
        return ""

    def _at_marker(self, place: int, marker: str, parts: list[Part]) -> str:
        begin, end = self._held.begin, place + len(marker)
        before = begin[:place].rstrip()
        spaces = self._held.take_spaces()
        if before:
            self._show(spaces + before, parts)
            spaces = ""
        self._held = Held()
        self._behind_a_call = True
        if (begins := self._markers[marker]) is not None:
            self._body = begins(self._calls, spaces + begin[len(before) : end])
        return begin[end:]

    def _show(self, text: str, parts: list[Part]) -> None:
        if shown := text.lstrip() if self._behind_a_call and not self._shown else text:
            parts.append(shown)
            self._shown = True

    def _pass_on(self, told: list[Part], parts: list[Part]) -> None:
        """Of a body, which may be no call."""
        for each in told:
            if isinstance(each, str):
                self._show(each, parts)
            else:
                parts.append(each)

    def _first_marker(self, text: str) -> tuple[int, str]:
        found = [(place, each) for each in self._markers if (place := text.find(each)) >= 0]
        return min(found, default=(-1, ""))

    def _inside(self, body: CallBody, text: str, parts: list[Part]) -> str:
        more, behind = body.feed(text)
        self._pass_on(more, parts)
        if behind is None:
            return ""
        self._calls += body.calls
        self._behind_a_call = not self._shown or bool(body.calls)
        self._body = None
        return behind


class Closed:
    """A body and the marker behind it, which may be missing."""

    def __init__(self, body: CallBody, closer: str) -> None:
        self._body = body
        self._closer = closer
        self._over = False
        self._held = Held()

    def feed(self, text: str) -> tuple[list[Part], str | None]:
        parts: list[Part] = []
        if not self._over:
            parts, behind = self._body.feed(text)
            if behind is None:
                return parts, None
            if not self._body.calls:
                return parts, behind
            self._over, text = True, behind
        self._held.add(text)
        begin = self._held.begin
        if begin.startswith(self._closer):
            return parts, begin[len(self._closer) :]
        return parts, None if self._closer.startswith(begin) else self._held.take()

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
