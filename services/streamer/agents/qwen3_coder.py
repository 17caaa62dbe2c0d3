"""Calls of Qwen3-Coder, whose arguments are elements (elements.py):

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    value
    </parameter>
    </function>
    </tool_call>
"""

from __future__ import annotations

import re

from services.streamer.agents.elements import HeldCall, Schemas, Written
from services.streamer.agents.marked import MarkedCalls

OPENER, CLOSER = "<function=", "</function>"
_NAME = re.compile(r"\s*([^\s<>]{1,256})>")
_PARAMETER = re.compile(r"<parameter=([^>\n]{1,256})>\n?(.*?)(?:\n?</parameter>|\n?(?=<parameter=)|(\Z))", re.DOTALL)


def parser(schemas: Schemas) -> MarkedCalls:
    return MarkedCalls(
        {
            OPENER: lambda index, marker: HeldCall(index, marker, CLOSER, _read, schemas),
            "<tool_call>": None,
            "</tool_call>": None,
        }
    )


def _read(text: str) -> Written | None:
    if (name := _NAME.match(text)) is None:
        return None
    return Written(name[1], [(found[1].strip(), _value(found)) for found in _PARAMETER.finditer(text, name.end())])


def _value(parameter: re.Match[str]) -> str:
    """Of one that isn't closed the spaces before the end of the call belong to the call."""
    return parameter[2] if parameter[3] is None else parameter[2].rstrip()
