"""Calls whose arguments are elements and not JSON: a call is held until it ends, and what a value is the tool's schema
tells (argument_types.py). Knows no format: `read` makes name and values of what stands between the markers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from services.streamer.agents import json_text
from services.streamer.agents.argument_types import value_of
from services.streamer.agents.parts import CallDelta, Part

# Of each tool, by its name, the schema of its arguments.
Schemas = Mapping[str, Mapping[str, Any]]


class Written(NamedTuple):
    """A call as it stands in the text: its arguments' names and what is written as their values."""

    name: str
    values: Iterable[tuple[str, str]]


class HeldCall:
    """From behind the opening marker to `closer`. `before`: the opening marker, which is content if this is no call."""

    def __init__(
        self, index: int, before: str, closer: str, read: Callable[[str], Written | None], schemas: Schemas
    ) -> None:
        self._index = index
        self._before = before
        self._closer = closer
        self._read = read
        self._schemas = schemas
        self._pieces: list[str] = []
        self._end = ""  # of them: what may be the beginning of the closing marker
        self.calls = 0

    def feed(self, text: str) -> tuple[list[Part], str | None]:
        self._pieces.append(text)
        end = (self._end + text).find(self._closer)
        if end < 0:
            self._end = (self._end + text)[1 - len(self._closer) :]
            return [], None
        held = "".join(self._pieces)
        place = len(held) - len(self._end + text) + end
        whole, behind = held[:place], held[place + len(self._closer) :]
        call = self._read(whole)
        if call is None or (arguments := self._arguments(call)) is None:
            return [self._before + whole + self._closer], behind
        self.calls = 1
        return [CallDelta(self._index, call.name, arguments)], behind

    def _arguments(self, call: Written) -> str | None:
        schema = self._schemas.get(call.name, {})
        properties = schema.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        return json_text.written({key: value_of(value, known.get(key), schema) for key, value in call.values})

    def flush(self) -> list[Part]:
        return [self._before + "".join(self._pieces)]
