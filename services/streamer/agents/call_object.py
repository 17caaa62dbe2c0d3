"""A call as a JSON object with a name and arguments, the core of most formats.

    {"name": "f", "arguments": {"a": 1}}
    held ------------------- | sent as it comes | skipped

Arguments are sent while they come once the text so far can only be a call. An object with its keys in another order is
held to its end. Knows no markers but the one it is told to put before what is no call.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Any

from services.streamer.agents import json_text
from services.streamer.agents.held import Held
from services.streamer.agents.json_scan import JsonScan
from services.streamer.agents.parts import CallDelta, Part

_HEAD = re.compile(
    r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)', re.DOTALL
)
# A head that is longer, in characters, is held with its object.
LONGEST_HEAD = 1024


class _Part(Enum):
    START = auto()  # nothing but white space yet
    HEAD = auto()
    ARGUMENTS = auto()
    TAIL = auto()
    MORE_KEYS = auto()


class CallObject:
    """`before`: what is content, too, if this is no call."""

    def __init__(self, index: int, before: str = "") -> None:
        self._index = index
        self._before = before
        self._state = _Part.START
        self._held = Held()  # at the start, and behind the arguments
        self._pieces: list[str] = []  # of the head
        self._first = ""  # its first characters
        self._scan = JsonScan()
        self.failed = False

    def feed(self, text: str) -> tuple[list[Part], str | None]:
        if self._state is _Part.START:
            return self._start(text)
        if self._state is _Part.HEAD:
            return self._head(text)
        if self._state is _Part.ARGUMENTS:
            return self._arguments(text)
        return self._tail(text) if self._state is _Part.TAIL else self._more_keys(text)

    def flush(self) -> list[Part]:
        if self.calls:
            return []
        return self._no_call(self._held.take() + "".join(self._pieces))

    @property
    def calls(self) -> int:
        return int(self._state not in (_Part.START, _Part.HEAD))

    def _start(self, text: str) -> tuple[list[Part], str | None]:
        self._held.add(text)
        if not self._held.begin:
            return [], None
        if self._held.begin[0] != "{":
            return self._no_call(""), self._held.take()
        self._state = _Part.HEAD
        self._before += self._held.take_spaces()
        return self._head(self._held.take())

    def _head(self, text: str) -> tuple[list[Part], str | None]:
        self._pieces.append(text)
        if len(self._first) < LONGEST_HEAD:
            self._first = (self._first + text)[:LONGEST_HEAD]
            found = _HEAD.match(self._first)
            if found is not None and (name := _name_in(found[1])):
                rest = "".join(self._pieces)[found.end() :]
                self._state, self._scan = _Part.ARGUMENTS, JsonScan()
                parts, behind = self._arguments(rest)
                return [CallDelta(self._index, name), *parts], behind
        end = self._scan.end(text)
        if end < 0:
            return [], None
        self._pieces[-1], rest = text[:end], text[end:]
        whole = "".join(self._pieces)
        # Without a marker an object with a name may be any answer in JSON.
        if (call := call_in(whole, named_alone=bool(self._before.strip()))) is None:
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
        self._held.add(text)
        begin = self._held.begin
        if not begin:
            return [], None
        if begin[0] == ",":
            self._state, self._scan = _Part.MORE_KEYS, JsonScan(1)
            return self._more_keys(begin)
        return [], begin[1:] if begin[0] == "}" else self._held.take()

    def _more_keys(self, text: str) -> tuple[list[Part], str | None]:
        end = self._scan.end(text)
        return [], None if end < 0 else text[end:]

    def _no_call(self, text: str) -> list[Part]:
        self.failed = True
        return [self._before + text] if self._before + text else []


def _name_in(written: str) -> str:
    try:
        name = str(json_text.read(written))
    except ValueError:
        return ""
    return name if json_text.sendable(name) else ""


def call_in(text: str, *, named_alone: bool = True) -> tuple[str, str] | None:
    """The name and the arguments of a call that is a JSON object. `named_alone`: a name is enough."""
    try:
        value = json_text.read(text)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters"))
    if not isinstance(name, str) or not name or not json_text.sendable(name):
        return None
    if not named_alone and not {"arguments", "parameters"} & value.keys():
        return None
    written = "{}" if arguments is None else _written(arguments)
    return None if written is None else (name, written)


def _written(arguments: Any) -> str | None:
    """Some models write the JSON of their arguments into a string."""
    if isinstance(arguments, str):
        try:
            if isinstance(json_text.read(arguments), dict) and json_text.sendable(arguments):
                return arguments
        except ValueError:
            pass
    return json_text.written(arguments)
