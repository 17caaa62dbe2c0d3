"""Calls as a Python list of calls, as the whole answer or behind a marker: `[get_weather(city="Berlin", days=2), f()]`.

Arguments are literals by name. The list is held until it ends. Nothing is run: python_literals.py reads them.
"""

from __future__ import annotations

from services.streamer.agents import json_text
from services.streamer.agents.marked import MarkedCalls
from services.streamer.agents.parts import CallDelta, Part
from services.streamer.agents.python_literals import Literals, NoLiteral

MARKERS = ("<|python_start|>", "<|python_end|>")


def parser() -> MarkedCalls:
    return MarkedCalls({MARKERS[0]: _List, MARKERS[1]: None}, at_start="[", begin=_List)


class _List:
    """`before`: what is content, too, if this is no list of calls."""

    def __init__(self, index: int, before: str) -> None:
        self._index = index
        self._before = before
        self._pieces: list[str] = []
        self._depth = 0
        self._quote = ""
        self._escaped = False
        self.calls = 0

    def feed(self, text: str) -> tuple[list[Part], str | None]:
        end = self._end(text)
        if not self._depth and end < 0 and text.strip():
            return [self._before], "".join([*self._pieces, text])
        if end < 0:
            self._pieces.append(text)
            return [], None
        whole = "".join([*self._pieces, text[:end]])
        calls = _calls(whole)
        if not calls:
            return [self._before + whole], text[end:]
        self.calls = len(calls)
        told: list[Part] = [CallDelta(self._index + place, *call) for place, call in enumerate(calls)]
        return told, text[end:]

    def flush(self) -> list[Part]:
        return [self._before + "".join(self._pieces)]

    def _end(self, text: str) -> int:
        """The place behind the list; -1: not in this piece."""
        for place, character in enumerate(text):
            if not self._depth and not character.isspace() and character != "[":
                return -1
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = bool(self._quote)
            elif self._quote:
                self._quote = "" if character == self._quote else self._quote
            elif character in "\"'":
                self._quote = character
            elif character in "[({":
                self._depth += 1
            elif character in "])}":
                self._depth -= 1
                if self._depth <= 0:
                    return place + 1
        return -1


def _calls(text: str) -> list[tuple[str, str]]:
    """Each with its arguments as JSON; none if one of them is no call."""
    try:
        calls = Literals(text).calls()
    except NoLiteral:
        return []
    written = [(name, json_text.written(arguments)) for name, arguments in calls]
    good = [(name, arguments) for name, arguments in written if arguments is not None]
    return good if len(good) == len(calls) else []
