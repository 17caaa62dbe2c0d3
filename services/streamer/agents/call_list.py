"""Several calls behind each other, each a JSON object: a JSON list, or objects with a character between them."""

from __future__ import annotations

from services.streamer.agents.call_object import CallObject
from services.streamer.agents.held import Held
from services.streamer.agents.parts import Part


class CallList:
    """`opens`: the character with which a list may begin; "": none. `between`: the one between two calls; `closes`: the
    one behind the last. It ends where no call follows. `before`: what is content, too, if there is no call."""

    def __init__(self, index: int, before: str, *, opens: str = "", between: str, closes: str = "") -> None:
        self._index = index
        self._before = before
        self._separator, self._between, self._closes = opens, between, closes
        self._held = Held()
        self._object: CallObject | None = None
        self._ended = 0  # calls

    @property
    def calls(self) -> int:
        return self._ended + (self._object.calls if self._object is not None else 0)

    def feed(self, text: str) -> tuple[list[Part], str | None]:
        parts: list[Part] = []
        while True:
            if self._object is None:
                self._held.add(text)
                self._skip_separator()
                if not self._held.begin:
                    return parts, None
                if self._held.begin[0] != "{":
                    return self._end(parts)
                self._object = CallObject(self._index + self.calls, "" if self.calls else self._before)
                text = self._held.take()
            more, behind = self._object.feed(text)
            parts += more
            if behind is None:
                return parts, None
            if self._object.failed:
                return parts, behind
            self._ended += 1
            self._object, self._separator, text = None, self._between, behind

    def flush(self) -> list[Part]:
        if self._object is not None:
            return self._object.flush()
        return [] if self.calls else [self._before + self._held.take()]

    def _skip_separator(self) -> None:
        """At most one."""
        begin = self._held.begin
        if begin and begin[0] == self._separator:
            self._before += self._held.take_spaces() + begin[0]
            self._held = Held(begin[1:])
            self._separator = ""

    def _end(self, parts: list[Part]) -> tuple[list[Part], str]:
        begin = self._held.begin
        if self.calls and begin[0] == self._closes:
            return parts, begin[1:]
        if not self.calls and self._before:
            parts.append(self._before)
        return parts, self._held.take()
