"""The value of an argument that a model wrote as bare text, by its schema: `12` may be a number or a text.

A text where the schema takes texts alone. Where it takes others, too, a text that is JSON of one of these is that.
Knows no format of calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.streamer.agents import json_text

# A schema that refers to others, or is made of others, is followed so deep.
DEEPEST = 8
ALL = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_PYTHONS = {"True": True, "False": False, "None": None}


def value_of(text: str, schema: Any, root: Any) -> Any:
    """`root`: of the tool's arguments, with what `schema` refers to."""
    types = _types(schema, root, 0)
    if types == {"string"}:
        return text
    word = text.strip()
    try:
        # A text may well be a word of Python's; what is to be something else isn't.
        known = word in _PYTHONS and (types == ALL or "string" not in types)
        value = _PYTHONS[word] if known else json_text.read(word)
    except ValueError:
        return text
    if isinstance(value, str) and types != ALL:
        return text if "string" in types else value
    return text if "string" in types and not _kinds(value) & types else value


def _types(schema: Any, root: Any, depth: int) -> frozenset[str]:
    """Of the values that it takes."""
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        return ALL
    if isinstance(schema.get("$ref"), str):
        return _types(_referred(schema["$ref"], root), root, depth + 1)
    if "const" in schema:
        return _kinds(schema["const"])
    if isinstance(schema.get("enum"), list):
        return frozenset().union(*map(_kinds, schema["enum"]))
    if (told := schema.get("type")) is not None:
        names = told if isinstance(told, list) else [told]
        found = ALL & {each for each in names if isinstance(each, str)}
        return found | {"integer"} if "number" in found else found
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(parts := schema.get(name), list) and parts:
            each = [_types(part, root, depth + 1) for part in parts]
            return frozenset.intersection(*each) if name == "allOf" else frozenset.union(*each)
    return ALL


def _referred(path: str, root: Any) -> Any:
    """What `#/$defs/name` names; None: nothing here."""
    if not path.startswith("#"):
        return None
    found = root
    for name in path[1:].split("/")[1:]:
        found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def _kinds(value: Any) -> frozenset[str]:
    """An integer is a number, too."""
    if value is None or isinstance(value, bool):
        return frozenset({"null" if value is None else "boolean"})
    if isinstance(value, int):
        return frozenset({"integer", "number"})
    if isinstance(value, float):
        return frozenset({"number"})
    return frozenset({"string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"})
