"""Several calls behind each other, each a JSON object: a JSON list, or objects with a character between them."""

from __future__ import annotations

from services.streamer.agents.call_object import CallObject
from services.streamer.agents.parts import Part


class CallList:
    """It begins with one of `opens`, or with the first call, and ends with one of `closes`, or where no call follows.
    `before`: what is content, too, if there is no call."""

    def __init__(self, index: int, before: str, *, opens: str = "", between: str, closes: str = "") -> None:
        self._index = index
        self._before = before
        self._opens, self._commas, self._closes = opens, between, closes
        self._held = ""
        self._object: CallObject | None = None
        self.calls = 0

    def feed(self, text: str) -> tuple[list[Part], str | None]:
        parts: list[Part] = []
        while True:
            if self._object is None:
                self._held += text
                if not self._between():
                    return parts, None
                if self._object is None:
                    return self._end(parts)
                text, self._held = self._held, ""
            calls = self._object.calls
            more, behind = self._object.feed(text)
            parts += more
            self.calls += self._object.calls - calls
            if behind is None:
                return parts, None
            if self._object.failed:
                return parts, behind
            self._object, text = None, behind

    def flush(self) -> list[Part]:
        if self._object is not None:
            return self._object.flush()
        return [] if self.calls else [self._before + self._held]

    def _between(self) -> bool:
        """Brackets and commas between objects. False: more text is needed. The object is begun if one follows."""
        while begin := self._held.lstrip():
            if begin[0] == "{":
                before = "" if self.calls else self._before
                self._object = CallObject(self._index + self.calls, before)
                return True
            if begin[0] not in (self._commas if self.calls else self._opens):
                return True
            self._before += self._held[: len(self._held) - len(begin) + 1]
            self._held = begin[1:]
        return False

    def _end(self, parts: list[Part]) -> tuple[list[Part], str]:
        if not self.calls:
            return [self._before] if self._before else [], self._held
        begin = self._held.lstrip()
        return parts, begin[1:] if begin[0] in self._closes else self._held
