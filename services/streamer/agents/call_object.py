"""A call as a JSON object with a name and arguments, the core of most formats.

    {"name": "f", "arguments": {"a": 1}}
    held ------------------- | sent as it comes | skipped

Arguments are sent while they come once the text so far can only be a call. An object with its keys in another order is
held to its end. Knows no markers but the one it is told to put before what is no call.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from services.streamer.agents import json_text
from services.streamer.agents.json_scan import JsonScan
from services.streamer.agents.parts import CallDelta, Part

_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)', re.DOTALL
)
# A head that is longer, in characters, is held with its object.
LONGEST_HEAD = 1024


class _Part(Enum):
    HEAD = auto()
    ARGUMENTS = auto()
    TAIL = auto()
    MORE_KEYS = auto()


class CallObject:
    """`before`: what is content, too, if this is no call."""

    def __init__(self, index: int, before: str = "") -> None:
        self._index = index
        self._before = before
        self._state = _Part.HEAD
        self._held = ""
        self._scan = JsonScan()
        self.failed = False

    def feed(self, text: str) -> tuple[list[Part], str | None]:
        if self._state is _Part.HEAD:
            return self._head(text)
        if self._state is _Part.ARGUMENTS:
            return self._arguments(text)
        return self._tail(text) if self._state is _Part.TAIL else self._more_keys(text)

    def flush(self) -> list[Part]:
        if self._state is not _Part.HEAD:
            return []
        return self._no_call(self._held)

    @property
    def calls(self) -> int:
        return int(self._state is not _Part.HEAD)

    def _head(self, text: str) -> tuple[list[Part], str | None]:
        short = len(self._held) < LONGEST_HEAD
        blank = not self._held.strip()
        self._held += text
        begin = self._held.lstrip()
        if not begin:
            return [], None
        if blank and begin[0] != "{":
            rest, self._held = self._held, ""
            return self._no_call(""), rest
        if short and (name := _name_in(found := _HEAD.match(self._held[:LONGEST_HEAD]))):
            assert found is not None
            rest, self._held = self._held[found.end() :], ""
            self._state, self._scan = _Part.ARGUMENTS, JsonScan()
            parts, behind = self._arguments(rest)
            return [CallDelta(self._index, name), *parts], behind
        end = self._scan.end(text)
        if end < 0:
            return [], None
        whole, rest = self._held[: len(self._held) - len(text) + end], text[end:]
        self._held = ""
        if (call := call_in(whole)) is None:
            return self._no_call(whole), rest
        self._state = _Part.TAIL
        return [CallDelta(self._index, *call)], rest

    def _arguments(self, text: str) -> tuple[list[Part], str | None]:
        end = self._scan.end(text)
        if end < 0:
            return [CallDelta(self._index, arguments=text)] if text else [], None
        self._state = _Part.TAIL
        parts, behind = self._tail(text[end:])
        return [CallDelta(self._index, arguments=text[:end]), *parts], behind

    def _tail(self, text: str) -> tuple[list[Part], str | None]:
        """Small models forget the last bracket: what follows then isn't of this call."""
        self._held += text
        begin = self._held.lstrip()
        if not begin:
            return [], None
        if begin[0] == ",":
            self._state, self._scan, self._held = _Part.MORE_KEYS, JsonScan(1), ""
            return self._more_keys(begin)
        return [], begin[1:] if begin[0] == "}" else self._held

    def _more_keys(self, text: str) -> tuple[list[Part], str | None]:
        end = self._scan.end(text)
        return [], None if end < 0 else text[end:]

    def _no_call(self, text: str) -> list[Part]:
        self.failed = True
        return [self._before + text] if self._before + text else []


def _name_in(head: re.Match[str] | None) -> str:
    if head is None:
        return ""
    try:
        name = str(json_text.read(head[1]))
    except ValueError:
        return ""
    return name if json_text.sendable(name) else ""


def call_in(text: str) -> tuple[str, str] | None:
    """The name and the arguments of a call that is a JSON object."""
    try:
        value = json_text.read(text)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters"))
    if not isinstance(name, str) or not name or not json_text.sendable(name):
        return None
    if isinstance(arguments, str):
        return (name, arguments) if json_text.sendable(arguments) else None
    written = "{}" if arguments is None else json_text.written(arguments)
    return None if written is None else (name, written)
