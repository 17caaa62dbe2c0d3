"""A request's JSON schema as the library of grammars takes it.

`format` is an annotation in JSON Schema: one that isn't known is to be ignored, and the library refuses it. Pure.
"""

from __future__ import annotations

from typing import Any

import orjson

# Which the library holds a text to.
FORMATS = frozenset({
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid", "unknown",
})  # fmt: skip
# Keywords whose value holds schemas by names of the author's, and those whose value is data.
_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DATA = ("const", "enum", "default", "examples")


def without_unknown_formats(schema: Any) -> Any:
    """A copy. Raises orjson.JSONEncodeError where it is nested too deeply to be written."""
    copy = orjson.loads(orjson.dumps(schema))
    left = [copy]
    while left:
        found = left.pop()
        if isinstance(found, list):
            left += found
        if not isinstance(found, dict):
            continue
        if isinstance(asked := found.get("format"), str) and asked not in FORMATS:
            del found["format"]
        for name, value in found.items():
            if name in _OF_NAMES and isinstance(value, dict):
                left += value.values()
            elif name not in _DATA:
                left.append(value)
    return copy
