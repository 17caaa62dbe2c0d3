"""JSON schemas: each keyword holds or is refused by name, and what a grammar lets out is valid by its schema."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from grammar_walk import Walk

from services.api.grammars import GrammarError, started
from services.streamer.agents.grammars import json_schema
from services.tokenizer.grammar_process import DEADLINE, GrammarProcess


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    return Walk(tmp_path_factory.mktemp("tokenizer"), ())


def an_object(**more: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, **more}


A_B = {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
# A schema, instances of it, and others.
HELD: list[tuple[Any, list[Any], list[Any]]] = [
    (True, [1, "a", None, [], {}], []),
    ({"type": "null"}, [None], [0, "null"]),
    ({"type": "boolean"}, [True, False], [None, 1]),
    ({"type": "integer"}, [0, -7, 10**20], ["1", True]),
    ({"type": "number"}, [0, -7.25, 1e10], ["1", None]),
    ({"type": "string"}, ["", "é\n\"\\", "😀"], [1]),
    ({"type": "array"}, [[], [1, [2]]], [{}]),
    ({"type": "object"}, [{}, {"a": {"b": []}}], [[]]),
    ({"type": ["integer", "null"]}, [1, None], ["1", False]),
    ({"enum": [1, "a", None, {"b": [1]}]}, [1, "a", None, {"b": [1]}], [2, "b", {"b": [2]}]),
    ({"const": {"a": 1}}, [{"a": 1}], [{"a": 2}, {}]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "äöü"], ["a", "abcd"]),
    ({"type": "string", "pattern": "^[a-c]+$"}, ["abc"], ["", "abd"]),
    ({"type": "string", "pattern": "b"}, ["abc", "b"], ["", "ac"]),
    ({"type": "string", "format": "date"}, ["2024-02-29"], ["x", "2024-13-01"]),
    ({"type": "string", "format": "uuid"}, ["2eb8aa08-aa98-11ea-b4aa-73b441d16380"], ["x"]),
    ({"type": "integer", "minimum": -3, "maximum": 12}, [-3, 0, 12], [-4, 13, 100]),
    ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10}, [1, 9], [0, 10]),
    ({"type": "number", "minimum": 0.5, "maximum": 1.5}, [0.5, 1, 1.25], [0.25, 2]),
    ({"type": "integer", "multipleOf": 5}, [0, 5, 25], [1, 26]),
    ({"type": "array", "items": {"type": "integer"}}, [[], [1, 2]], [["a"], [1, "a"]]),
    ({"type": "array", "items": False}, [[]], [[1]]),
    ({"type": "array", "minItems": 1, "maxItems": 2}, [[1], [1, 2]], [[], [1, 2, 3]]),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 2},
     [[1, "a"]], [[], [1], ["a", 1], [1, "a", 1]]),
    (an_object(**A_B), [{}, {"a": 1}, {"a": 1, "b": "x"}], [{"a": "x"}, {"c": 1}]),
    (an_object(**A_B, required=["b"]), [{"b": "x"}, {"a": 1, "b": "x"}], [{}, {"a": 1}]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"x": 1}], [{"x": "1"}]),
    (an_object(patternProperties={"^x": {"type": "integer"}}), [{}, {"xa": 1}], [{"xa": "1"}, {"y": 1}]),
    ({"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "integer"}},
     [{"a": 1}, {"a": 1, "b": 2}], [{}, {"a": 1, "b": 2, "c": 3}]),
    ({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]}, [5, "a"], ["ab", None]),
    ({"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 4}]}, [2, 4], [1, 5]),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [5, "a"], [None]),
    ({"$defs": {"a": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/a"}}, [[], [1]], [["a"]]),
    ({"definitions": {"a/b": {"type": "integer"}}, "$ref": "#/definitions/a~1b"}, [1], ["a"]),
    ({"$defs": {"n": an_object(properties={"next": {"$ref": "#/$defs/n"}})}, "$ref": "#/$defs/n"},
     [{}, {"next": {"next": {}}}], [{"next": 1}]),
    ({"title": "t", "description": "d", "default": 1, "examples": [1], "$comment": "c", "type": "integer",
      "readOnly": True, "deprecated": True, "$schema": "https://json-schema.org/draft/2020-12/schema"}, [1], ["a"]),
]  # fmt: skip
# Schemas that say what no grammar here holds, and the word by which that is told.
REFUSED: list[tuple[Any, str]] = [
    (False, "false"),
    ({"not": {"type": "integer"}}, "not"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": {"type": "integer"}}, "contains"),
    ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"type": "array", "unevaluatedItems": False}, "unevaluatedItems"),
    ({"if": {"type": "integer"}, "then": {"minimum": 3}}, "then"),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, "oneOf"),
    ({"$dynamicRef": "#a"}, "$dynamicRef"),
    ({"$ref": "https://example.com/a.json"}, "example.com"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
    ({"type": "string", "minLength": 3, "maxLength": 1}, "minLength"),
    ({"type": "integer", "minimum": 3, "maximum": 1}, "minimum"),
    ({"type": "nonsense"}, "nonsense"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "valid", "invalid"), HELD, ids=lambda each: json.dumps(each)[:40])
def test_a_keyword_holds(walk: Walk, schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    grammar = json_schema(schema)
    for instance in valid:
        jsonschema.validate(instance, schema)
        assert walk.allows(grammar, json.dumps(instance, ensure_ascii=False)), instance
    for instance in invalid:
        assert "format" in json.dumps(schema) or not jsonschema.Draft202012Validator(schema).is_valid(instance)
        assert not walk.allows(grammar, json.dumps(instance, ensure_ascii=False)), instance


@pytest.mark.parametrize(("schema", "word"), REFUSED, ids=lambda each: json.dumps(each)[:40])
async def test_what_is_not_held_is_refused_by_name(tiny_folder: Path, schema: Any, word: str) -> None:
    process = GrammarProcess(tiny_folder / "tokenizer.json")
    try:
        assert word in await process.check(json_schema(schema))
    finally:
        await process.close()


def composed(draw: random.Random, depth: int = 2) -> Any:
    """A schema of those above, with bounds by which a random text has an end."""
    known = [schema for schema, _, _ in HELD] + [schema for schema, _ in REFUSED if draw.random() < 0.2]
    if depth == 0 or draw.random() < 0.3:
        return draw.choice(known)
    parts = [composed(draw, depth - 1) for _ in range(draw.randint(1, 3))]
    kind = draw.randrange(5)
    if kind == 0:
        names = [f"key {place}" for place in range(len(parts))]
        needed = [name for name in names if draw.random() < 0.6]
        return an_object(properties=dict(zip(names, parts, strict=True)), required=needed)
    if kind == 1:
        return {"type": "array", "items": parts[0], "minItems": draw.randrange(2), "maxItems": draw.randint(1, 3)}
    if kind == 2:
        return {"anyOf": parts}
    if kind == 3:
        return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
    return {"allOf": [parts[0], draw.choice([{}, {"type": ["string", "integer"]}, {"minimum": 1}, {"maxLength": 9}])]}


def of_packages() -> Iterator[Any]:
    """Schemas in packages at hand."""
    for package in ("jsonschema_specifications", "setuptools"):
        found = importlib.util.find_spec(package)
        for folder in found.submodule_search_locations or () if found is not None else ():
            for file in sorted(Path(folder).rglob("*.json")):
                value = json.loads(file.read_bytes())
                yield from (each for each in walk_schemas(value) if len(json.dumps(each)) < 100_000)


def walk_schemas(value: Any) -> Iterator[Any]:
    """The schema, and those in it that stand alone."""
    yield value
    for word in ("properties", "$defs", "definitions"):
        for each in (value.get(word) or {}).values() if isinstance(value, dict) else ():
            if "$ref" not in json.dumps(each) and isinstance(each, dict):
                yield from walk_schemas(each)


@pytest.mark.parametrize("count", [40, pytest.param(450, marks=pytest.mark.slow)])
async def test_every_schema_compiles_in_time_or_is_refused(tiny_folder: Path, count: int) -> None:
    draw = random.Random(count)
    schemas = [schema for schema, *_ in (*HELD, *REFUSED)] + [composed(draw) for _ in range(count)]
    if count > 100:
        schemas += of_packages()
        assert len(schemas) >= 500
    told = []
    process = GrammarProcess(tiny_folder / "tokenizer.json")
    try:
        for schema in schemas:
            told.append(await process.check(json_schema(schema)))
    finally:
        await process.close()
    assert all(each == "" or each.strip() for each in told)
    assert [each for each in told if "longer than" in each or "memory" in each or "nested" in each] == []
    assert told.count("") > len(told) // 3 and told.count("") < len(told)


@pytest.mark.parametrize("count", [25, pytest.param(300, marks=pytest.mark.slow)])
def test_what_is_let_out_is_valid(walk: Walk, count: int) -> None:
    draw = random.Random(count)
    ended = 0
    for schema in (composed(draw) for _ in range(count)):
        try:
            started(walk.vocabulary, json_schema(schema))
        except GrammarError:
            continue
        for _ in range(3):
            try:
                text = walk.text(json_schema(schema), draw, most=400)
            except AssertionError:
                continue
            ended += 1
            jsonschema.validate(json.loads(text), schema)
    assert ended > count


SUITE = os.environ.get("JSON_SCHEMA_TEST_SUITE", "")


@pytest.mark.skipif(not SUITE, reason="JSON_SCHEMA_TEST_SUITE names no folder of a draft's tests")
def test_the_official_suite(walk: Walk) -> None:
    """Such as json/tests/draft2020-12 in the sources of jsonschema. What compiles takes no invalid instance."""
    compiled, wrong, slow = 0, [], []
    for file in sorted(Path(SUITE).glob("*.json")):
        for case in json.loads(file.read_bytes()):
            begin = time.process_time()
            try:
                started(walk.vocabulary, json_schema(case["schema"]))
            except GrammarError as error:
                assert str(error).strip()
                continue
            finally:
                if time.process_time() - begin > DEADLINE:
                    slow.append(case["description"])
            compiled += 1
            for each in case["tests"]:
                text = json.dumps(each["data"], ensure_ascii=False)
                if not each["valid"] and walk.allows(json_schema(case["schema"]), text):
                    wrong.append((file.name, case["description"], each["description"]))
    assert compiled > 100 and not slow and not wrong
