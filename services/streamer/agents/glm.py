"""Calls of GLM-4.5 and later, whose arguments are elements (elements.py); 4.7 writes no lines between them:

    <tool_call>NAME
    <arg_key>KEY</arg_key>
    <arg_value>value</arg_value>
    </tool_call>
"""

from __future__ import annotations

import re

from services.streamer.agents.elements import HeldCall, Schemas, Written
from services.streamer.agents.marked import MarkedCalls

OPENER, CLOSER, KEY = "<tool_call>", "</tool_call>", "<arg_key>"
MARKERS = (OPENER, CLOSER, KEY, "</arg_key>", "<arg_value>", "</arg_value>")
_NAME = re.compile(r"\s*([^\s<>{}]{1,256})\s*(?=<arg_key>|\Z)")
_ARGUMENT = re.compile(
    r"<arg_key>([^<\n]{1,256})</arg_key>\s*<arg_value>(.*?)(?:</arg_value>|(?=<arg_key>)|\Z)", re.DOTALL
)


def parser(schemas: Schemas) -> MarkedCalls:
    return MarkedCalls({OPENER: lambda index, marker: HeldCall(index, marker, CLOSER, _read, schemas)})


def _read(text: str) -> Written | None:
    if (name := _NAME.match(text)) is None:
        return None
    return Written(name[1], [(found[1].strip(), found[2]) for found in _ARGUMENT.finditer(text, name.end())])
