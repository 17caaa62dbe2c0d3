"""Calls as a Python list of calls, as the whole answer or behind a marker: `[get_weather(city="Berlin", days=2), f()]`.

Arguments are literals by name. The list is held until it ends. From the first that is no call it is content: the model
sees which of its calls were made. Nothing is run: python_literals.py reads them.
"""

from __future__ import annotations

import contextlib
import re

from services.streamer.agents import json_text
from services.streamer.agents.marked import MarkedCalls
from services.streamer.agents.parts import CallDelta, Part
from services.streamer.agents.python_literals import Literals, NoLiteral

MARKERS = ("<|python_start|>", "<|python_end|>")
_BETWEEN = re.compile(r"\A\s*,?\s*")


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
        return self._told("".join([*self._pieces, text[:end]])), text[end:]

    def flush(self) -> list[Part]:
        return self._told("".join(self._pieces))

    def _told(self, text: str) -> list[Part]:
        calls, rest = _calls(text)
        if not calls:
            return [self._before + text]
        self.calls = len(calls)
        told: list[Part] = [CallDelta(self._index + place, *call) for place, call in enumerate(calls)]
        return [*told, rest] if rest else told

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


def _calls(text: str) -> tuple[list[tuple[str, str]], str]:
    """Each with its arguments as JSON, up to the first that is no call, and the text from there on."""
    calls: list[tuple[str, str]] = []
    behind = 0
    with contextlib.suppress(NoLiteral):
        for (name, arguments), place in Literals(text).calls():
            if (written := json_text.written(arguments)) is None:
                raise NoLiteral
            calls.append((name, written))
            behind = place
        return calls, ""
    return calls, _BETWEEN.sub("", text[behind:], count=1)
