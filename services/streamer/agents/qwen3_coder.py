"""Calls of Qwen3-Coder, whose arguments are elements:

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    value
    </parameter>
    </function>
    </tool_call>

What a value is the tool's schema tells (argument_types.py). A call is held until it ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from services.streamer.agents import json_text
from services.streamer.agents.argument_types import value_of
from services.streamer.agents.marked import MarkedCalls
from services.streamer.agents.parts import CallDelta, Part

OPENER, CLOSER = "<function=", "</function>"
_NAME = re.compile(r"\s*([^\s<>]{1,256})>")
_PARAMETER = re.compile(r"<parameter=([^>\n]{1,256})>\n?(.*?)(?:\n?</parameter>|\n?(?=<parameter=)|(\Z))", re.DOTALL)

# Of each tool, by its name, the schema of its arguments.
Schemas = Mapping[str, Mapping[str, Any]]


def parser(schemas: Schemas) -> MarkedCalls:
    return MarkedCalls(
        {
            OPENER: lambda index, marker: _Element(index, marker, schemas),
            "<tool_call>": None,
            "</tool_call>": None,
        }
    )


class _Element:
    """From behind `<function=` to `</function>`."""

    def __init__(self, index: int, before: str, schemas: Schemas) -> None:
        self._index = index
        self._before = before
        self._schemas = schemas
        self._pieces: list[str] = []
        self._end = ""  # of them: what may be the beginning of the closing marker
        self.calls = 0

    def feed(self, text: str) -> tuple[list[Part], str | None]:
        self._pieces.append(text)
        end = (self._end + text).find(CLOSER)
        if end < 0:
            self._end = (self._end + text)[1 - len(CLOSER) :]
            return [], None
        held = "".join(self._pieces)
        place = len(held) - len(self._end + text) + end
        whole, behind = held[:place], held[place + len(CLOSER) :]
        name = _NAME.match(whole)
        if name is None:
            return [self._before + whole + CLOSER], behind
        schema = self._schemas.get(name[1], {})
        properties = schema.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        values = {
            (key := found[1].strip()): value_of(_written(found), known.get(key), schema)
            for found in _PARAMETER.finditer(whole, name.end())
        }
        if (arguments := json_text.written(values)) is None:
            return [self._before + whole + CLOSER], behind
        self.calls = 1
        return [CallDelta(self._index, name[1], arguments)], behind

    def flush(self) -> list[Part]:
        return [self._before + "".join(self._pieces)]


def _written(parameter: re.Match[str]) -> str:
    """Of one that isn't closed the spaces before the end of the call belong to the call."""
    return parameter[2] if parameter[3] is None else parameter[2].rstrip()

