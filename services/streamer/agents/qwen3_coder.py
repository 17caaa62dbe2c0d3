"""Calls of Qwen3-Coder, whose arguments are elements:

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    value
    </parameter>
    </function>
    </tool_call>

A value is a text where the tool's schema says so, else JSON if it can be read as that. A call is held until it ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from services.streamer.agents import json_text
from services.streamer.agents.marked import MarkedCalls
from services.streamer.agents.parts import CallDelta, Part

OPENER, CLOSER = "<function=", "</function>"
_NAME = re.compile(r"\s*([^\s<>]{1,256})>")
_PARAMETER = re.compile(r"<parameter=([^>\n]{1,256})>\n?(.*?)(?:\n?</parameter>|(?=<parameter=)|(\Z))", re.DOTALL)
_PYTHONS = {"True": True, "False": False, "None": None}

# Of each tool, by its name, the schemas of its parameters, by theirs.
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
        self._held = ""
        self.calls = 0

    def feed(self, text: str) -> tuple[list[Part], str | None]:
        searched = max(0, len(self._held) - len(CLOSER))
        self._held += text
        end = self._held.find(CLOSER, searched)
        if end < 0:
            return [], None
        whole, behind = self._held[:end], self._held[end + len(CLOSER) :]
        name = _NAME.match(whole)
        if name is None:
            return [self._before + whole + CLOSER], behind
        schemas = self._schemas.get(name[1], {})
        values = {
            found[1].strip(): _value(_written(found), schemas.get(found[1].strip()))
            for found in _PARAMETER.finditer(whole, name.end())
        }
        if (arguments := json_text.written(values)) is None:
            return [self._before + whole + CLOSER], behind
        self.calls = 1
        return [CallDelta(self._index, name[1], arguments)], behind

    def flush(self) -> list[Part]:
        return [self._before + self._held]


def _written(parameter: re.Match[str]) -> str:
    """Of one that isn't closed the spaces before the end of the call belong to the call."""
    return parameter[2] if parameter[3] is None else parameter[2].rstrip()


def _value(text: str, schema: Any) -> Any:
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return text
    word = text.strip()
    if word in _PYTHONS:
        return _PYTHONS[word]
    try:
        return json_text.read(word)
    except ValueError:
        return text
