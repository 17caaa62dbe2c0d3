"""Formats that aren't known are left out, and nothing that only looks like one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.api.grammars import read_vocabulary, started
from services.streamer.agents.answer_grammars import calls_alone
from services.streamer.agents.call_grammars import Calls, Spelling
from services.streamer.agents.grammars import json_schema
from services.streamer.agents.schemas import FORMATS, without_unknown_formats
from tests.services.tokenizer.conftest import make_tokenizer

UNKNOWN = {"type": "string", "format": "color"}
PLAIN = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        (UNKNOWN, PLAIN),
        ({"properties": {"a": UNKNOWN}}, {"properties": {"a": PLAIN}}),
        ({"items": UNKNOWN, "prefixItems": [UNKNOWN]}, {"items": PLAIN, "prefixItems": [PLAIN]}),
        ({"anyOf": [UNKNOWN, {"not": UNKNOWN}]}, {"anyOf": [PLAIN, {"not": PLAIN}]}),
        ({"$defs": {"a": UNKNOWN}, "contains": UNKNOWN}, {"$defs": {"a": PLAIN}, "contains": PLAIN}),
    ],
)  # fmt: skip
def test_unknown_formats_are_left_out(schema: Any, left: Any) -> None:
    before = json.dumps(schema)
    assert without_unknown_formats(schema) == left
    assert json.dumps(schema) == before


@pytest.mark.parametrize(
    "schema",
    [
        True, {"type": "string", "format": "date"}, {"const": {"format": "color"}}, {"enum": [{"format": "color"}]},
        {"properties": {"format": PLAIN}}, {"properties": {"properties": {"enum": ["color"]}}},
        {"default": {"format": "color"}, "format": 3},
    ],
)  # fmt: skip
def test_all_else_stays(schema: Any) -> None:
    assert without_unknown_formats(schema) == schema


def test_the_library_takes_what_is_left_and_knows_each_format(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    make_tokenizer().save(str(file))
    vocabulary = read_vocabulary(file)
    for each in (*FORMATS, "color", "regex", "uri-reference"):
        started(vocabulary, json_schema({"type": "string", "format": each}))
    tool = {"t": {"type": "object", "properties": {"a": UNKNOWN}}}
    text = calls_alone(Calls(Spelling("(", "(", ":", ")", ","), tool, {}, several=False))
    started(vocabulary, json.dumps({"grammars": [{"lark_grammar": text}]}))
