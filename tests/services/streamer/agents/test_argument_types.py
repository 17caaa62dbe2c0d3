from __future__ import annotations

from typing import Any

import pytest

from services.streamer.agents.argument_types import value_of

STRING, NUMBER, NULL = {"type": "string"}, {"type": "number"}, {"type": "null"}
ROOT = {"$defs": {"color": {"enum": ["red", "1"]}, "again": {"$ref": "#/$defs/again"}, "a/b": NUMBER}}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (STRING, "12", "12"),
        (STRING, ' {"a": 1}', ' {"a": 1}'),
        (STRING, "null", "null"),
        ({"type": "integer"}, " 12 ", 12),
        (NUMBER, "12", 12),
        ({"type": "boolean"}, "True", True),
        ({"type": "object"}, '{"a": [null]}', {"a": [None]}),
        # Not of its type: as the model wrote it.
        ({"type": "integer"}, "twelve", "twelve"),
        ({"type": "integer"}, '"12"', "12"),
        (None, "12", 12),
        (None, "True", True),
        (None, "a b", "a b"),
        (None, '"a"', "a"),
        ({}, "[1]", [1]),
        # Optional[str] and its kin.
        ({"anyOf": [STRING, NULL]}, "12", "12"),
        ({"anyOf": [STRING, NULL]}, "null", None),
        ({"anyOf": [STRING, NULL]}, "None", "None"),
        ({"type": ["string", "null"]}, '"a"', '"a"'),
        ({"oneOf": [NUMBER, NULL]}, "None", None),
        ({"type": ["string", "integer"]}, "12", 12),
        ({"type": ["string", "integer"]}, "1.5", "1.5"),
        ({"type": ["string", "number"]}, "1.5", 1.5),
        ({"anyOf": [STRING, {"type": "array"}]}, '["a"]', ["a"]),
        ({"anyOf": [STRING, {"type": "array"}]}, '{"a": 1}', '{"a": 1}'),
        ({"allOf": [{"type": ["string", "null"]}, STRING]}, "null", "null"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"enum": ["1", 2]}, "2", 2),
        ({"const": "true"}, "true", "true"),
        ({"$ref": "#/$defs/color"}, "1", "1"),
        ({"anyOf": [{"$ref": "#/$defs/color"}, NULL]}, "1", "1"),
        ({"$ref": "#/$defs/a~1b"}, "1", 1),
        # What can't be followed says nothing.
        ({"$ref": "#/$defs/again"}, "1", 1),
        ({"$ref": "#/$defs/none"}, "1", 1),
        ({"$ref": "https://example.com"}, "1", 1),
        ({"type": 5}, "1", 1),
        ({"enum": "12"}, "1", 1),
        ({"anyOf": []}, "1", 1),
        ("string", "1", 1),
    ],
)  # fmt: skip
def test_a_text_is_what_its_schema_takes(schema: Any, text: str, value: Any) -> None:
    found = value_of(text, schema, ROOT)
    assert found == value and type(found) is type(value)
