from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher

from services.api.sampling import MAX_GRAMMAR
from services.streamer.agents.grammars import choice, json_schema, lark, regex
from services.streamer.openai.errors import ApiError
from services.streamer.openai.fields import BodyFields
from services.streamer.openai.structured import MAX_CHOICES, AskedForm, read_grammar

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def asked(**body: Any) -> AskedForm:
    fields = BodyFields(body)
    found = read_grammar(fields)
    fields.nothing_else()
    return found


def refusal(**body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        asked(**body)
    assert caught.value.status == 400
    return caught.value


def named(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **more}}


@pytest.mark.parametrize(
    "body",
    [
        {}, {"response_format": None}, {"response_format": {"type": "text"}}, {"structured_outputs": None},
        {"guided_json": None, "guided_json_object": False},
    ],
)  # fmt: skip
def test_most_requests_ask_for_nothing(body: dict[str, Any]) -> None:
    assert asked(**body) == AskedForm("", "")


@pytest.mark.parametrize(
    ("body", "grammar", "field"),
    [
        ({"response_format": {"type": "json_object"}}, json_schema({"type": "object"}), "response_format"),
        ({"response_format": named(SCHEMA, strict=True, description="d")}, json_schema(SCHEMA),
         "response_format.json_schema.schema"),
        ({"structured_outputs": {"json": SCHEMA}}, json_schema(SCHEMA), "structured_outputs.json"),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, json_schema(SCHEMA), "structured_outputs.json"),
        ({"structured_outputs": {"json_object": True, "regex": None}}, json_schema({"type": "object"}),
         "structured_outputs.json_object"),
        ({"structured_outputs": {"regex": "a/b"}}, regex("a/b"), "structured_outputs.regex"),
        ({"structured_outputs": {"choice": ["a", "b", "a"]}}, choice(["a", "b"]), "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, lark('start: "a"'), "structured_outputs.grammar"),
        ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
         json_schema(SCHEMA, whitespace_flexible=False), "structured_outputs.json"),
        ({"guided_json": SCHEMA}, json_schema(SCHEMA), "guided_json"),
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": " "}, json_schema(SCHEMA, whitespace_pattern=" "),
         "guided_json"),
        ({"guided_regex": "a+"}, regex("a+"), "guided_regex"),
        ({"guided_choice": ["a"]}, choice(["a"]), "guided_choice"),
        ({"guided_grammar": "start: /a/"}, lark("start: /a/"), "guided_grammar"),
        ({"guided_grammar": 'root ::= "a"'}, lark("start: r0\nr0: T0\nT0: /a/\n"), "guided_grammar"),
        ({"guided_json_object": True}, json_schema({"type": "object"}), "guided_json_object"),
    ],
)  # fmt: skip
def test_a_field_becomes_a_grammar(body: dict[str, Any], grammar: str, field: str) -> None:
    assert asked(**body) == AskedForm(grammar, field)
    assert not LLMatcher.validate_grammar(grammar)


DEEP = "[" * 2000 + "]" * 2000
TOO_DEEP: dict[str, Any] = {}
for _ in range(300):
    TOO_DEEP = {"not": TOO_DEEP}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "structural_tag"}}, "response_format.structures"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
         "response_format.json_schema.schema"),
        ({"response_format": named(SCHEMA, strict="yes")}, "response_format.json_schema.strict"),
        ({"response_format": named([])}, "response_format.json_schema.schema"),
        ({"response_format": named("{")}, "response_format.json_schema.schema"),
        ({"response_format": named(DEEP)}, "response_format.json_schema.schema"),
        ({"response_format": named(TOO_DEEP)}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag.structures"),
        ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"structural_tag": '{"type": "x"}'}}, "structured_outputs.structural_tag.type"),
        ({"structured_outputs": {"regex": "a", "structural_tag": "{}"}}, "structured_outputs"),
        ({"guided_structural_tag": "{}"}, "guided_structural_tag"),
        ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice[1]"),
        ({"structured_outputs": {"choice": ["a"] * (MAX_CHOICES + 1)}}, "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": 'root ::= other'}}, "structured_outputs.grammar"),
        ({"guided_grammar": 'root ::= "a'}, "guided_grammar"),
        ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True, "whitespace_pattern": " "}},
         "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}},
         "structured_outputs.disable_additional_properties"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_regex": ["a"]}, "guided_regex"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"guided_grammar": ""}, "guided_grammar"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"guided_regex": "a" * MAX_GRAMMAR}, "guided_regex"),
        ({"guided_json": '"' + "a" * MAX_GRAMMAR + '"'}, "guided_json"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(body: dict[str, Any], param: str) -> None:
    assert refusal(**body).param == param


def test_an_error_in_a_grammar_has_its_place() -> None:
    error = refusal(structured_outputs={"grammar": 'root ::= x\nx ::= "a" | [b'})
    assert "line 2, column 13" in error.message
