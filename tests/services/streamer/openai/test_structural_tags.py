"""Structural tags, in both forms: what their grammar allows, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from grammar_walk import Walk

from services.streamer.openai.errors import ApiError
from services.streamer.openai.fields import BodyFields
from services.streamer.openai.structured import read_grammar

CITY = {"type": "object", "properties": {"city": {"enum": ["Bonn", "Rom"]}}, "required": ["city"],
        "additionalProperties": False}  # fmt: skip
BONN = '{"city": "Bonn"}'
SCHEMA = {"type": "json_schema", "json_schema": CITY}
ANY = {"type": "any_text"}
LEGACY = {"structures": [{"begin": "<f=city>", "schema": CITY, "end": "</f>"}, {"begin": "<f=no>", "end": ""},
                         {"begin": "<g>", "schema": {"type": "integer"}, "end": "</g>"}],
          "triggers": ["<f=", "<g>"]}  # fmt: skip


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def tag(begin: str, content: Any = SCHEMA, end: Any = "</f>") -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def triggered(*tags: Any, triggers: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": triggers or ["<f"], "tags": list(tags), **more}


def separated(**more: Any) -> dict[str, Any]:
    return {"type": "tags_with_separator", "tags": [tag("<a>", const("1"), "!"), tag("<b>", const("2"), "!")],
            "separator": ", ", **more}  # fmt: skip


def joined(kind: str, *elements: Any) -> dict[str, Any]:
    return {"type": kind, "elements": list(elements)}


def response_format(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "structural_tag", **(value if "structures" in value else {"format": value})}


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    return Walk(tmp_path_factory.mktemp("tokenizer"), ())


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (LEGACY, ["", "Hi {", f"Hi <f=city>{BONN}</f>", f"<f=city>{BONN}</f><g>5</g> x <f=no>{{}} y", "<f", "<g"],
         ["<f=", "<f=c", "<f=city>x", "<g>x", f"<f=city>{BONN}", f"a<f=city>{BONN}</f><g>"]),
        (const("a/b"), ["a/b"], ["", "a", "a/bc"]),
        (SCHEMA, [BONN], ["", "{}"]),
        ({"type": "json_schema", "json_schema": True, "style": "json"}, ["1", "[]"], ["x"]),
        ({"type": "regex", "pattern": "[a-z/]+"}, ["a/"], ["", "A"]),
        ({"type": "grammar", "grammar": 'root ::= "(" root? ")"'}, ["()", "(())"], ["", "(()"]),
        ({"type": "grammar", "grammar": 'start: "x"+'}, ["xx"], ["", "y"]),
        (ANY, ["", "a\nb"], []),
        ({"type": "any_text", "excludes": ["</", "x/y"]}, ["", "a<b", "x/"], ["a</b", "x/y", "1x/y2"]),
        (joined("sequence", const("a"), SCHEMA, const("b")), [f"a{BONN}b"], [f"a{BONN}", "ab"]),
        (joined("sequence", const("a"), ANY), ["a", "ab"], ["", "ba"]),
        (joined("sequence", ANY, const("."), const("!")), [".!", "a.!"], ["a", "a.", "a.b.!", "!"]),
        (joined("sequence", ANY, tag("<a>", const("1"), "!")), ["<a>1!", "x<a>1!"], ["x", "x<a>2!", "<a>1!x"]),
        (joined("or", const("yes"), const("no"), const("")), ["yes", "no", ""], ["yesno"]),
        (joined("sequence", joined("or", ANY, const("b")), const("!")), ["!", "ab!", "b!"], ["b", "!b"]),
        ({"type": "optional", "content": const("a")}, ["", "a"], ["aa"]),
        ({"type": "star", "content": const("ab")}, ["", "abab"], ["a"]),
        ({"type": "plus", "content": tag("<", ANY, ">")}, ["<>", "<a><b>"], ["", "<a>b"]),
        ({"type": "repeat", "min": 2, "max": 3, "content": const("a")}, ["aa", "aaa"], ["a", "aaaa"]),
        ({"type": "repeat", "min": 1, "max": -1, "content": const("a")}, ["a", "a" * 9], [""]),
        (tag("<think>", ANY, "</think>"), ["<think></think>", "<think>a < b</think>"],
         ["<think>", "<think></think>a", "<think></think></think>"]),
        (tag("<r>", {"type": "regex", "pattern": "[a-z<]+"}, "</r>"), ["<r>a<b</r>"], ["<r></r>", "<r>A</r>"]),
        (tag("<r>", SCHEMA, ["</r>", "</s>"]), [f"<r>{BONN}</r>", f"<r>{BONN}</s>"], [f"<r>{BONN}"]),
        (tag("", ANY, ["</r>", "."]), ["a</r>", "."], ["a", "a.b."]),
        (triggered(tag("<f1>"), tag("<f2>", const("x"))), ["", "a", f"a<f1>{BONN}</f>b<f2>x</f>"],
         ["<f", "<f3", f"<f1>{BONN}", "<f2>x</f><f"]),
        (triggered(tag("<f1>"), at_least_one=True), [f"<f1>{BONN}</f>", f"<f1>{BONN}</f> a <f1>{BONN}</f>"],
         ["", "a", f"a<f1>{BONN}</f>"]),
        (triggered(tag("<f1>"), stop_after_first=True), ["", "a", f"a<f1>{BONN}</f>"],
         [f"<f1>{BONN}</f>a", "<f"]),
        (triggered(tag("<f1>"), stop_after_first=True, at_least_one=True), [f"<f1>{BONN}</f>"],
         ["", "a", f"<f1>{BONN}</f>a"]),
        (triggered(tag("<f1>"), excludes=["!"]), ["a", f"a<f1>{BONN}</f>b"], ["!", "a!b", f"a!<f1>{BONN}</f>"]),
        (tag("<r>", triggered(tag("<f1>")), "</r>"), ["<r></r>", f"<r>a<f1>{BONN}</f>b</r>"],
         ["<r>", "<r></r>a", f"<r><f1>{BONN}</f>"]),
        (tag("<r>", triggered(tag("<f1>"), stop_after_first=True), "</r>"),
         ["<r>a</r>", f"<r>a<f1>{BONN}</f></r>"], [f"<r><f1>{BONN}</f>a</r>"]),
        (separated(), ["", "<a>1!", "<a>1!, <b>2!, <a>1!"], ["<a>1!, ", "<a>2!", "<a>1!<b>2!"]),
        (separated(at_least_one=True), ["<a>1!", "<a>1!, <b>2!"], [""]),
        (separated(stop_after_first=True), ["", "<b>2!"], ["<a>1!, <b>2!"]),
        (joined("sequence", tag("<think>", ANY, "</think>"), triggered(tag("<f1>"))),
         ["<think>x</think>", f"<think><f1></think>a<f1>{BONN}</f>"], ["", "<think>", "<think></think><f1>x"]),
    ],
)  # fmt: skip
def test_a_form_allows_what_it_says(walk: Walk, form: dict[str, Any], good: list[str], bad: list[str]) -> None:
    asked = read_grammar(BodyFields({"response_format": response_format(form)}))
    assert asked.field == "response_format" and asked.free
    assert [text for text in good if not walk.allows(asked.grammar, text)] == []
    assert [text for text in bad if walk.allows(asked.grammar, text)] == []


@pytest.mark.parametrize("value", [response_format(LEGACY), json.dumps(response_format(const("a"))), LEGACY])
def test_structured_outputs_take_them_as_text_too(value: Any) -> None:
    asked = read_grammar(BodyFields({"structured_outputs": {"structural_tag": value}}))
    assert asked.field == "structured_outputs.structural_tag" and asked.grammar


DEEP: Any = const("a")
for _ in range(40):
    DEEP = {"type": "optional", "content": DEEP}
DEEP_SCHEMA: Any = {}
for _ in range(300):
    DEEP_SCHEMA = {"not": DEEP_SCHEMA}


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({}, "structures"),
        ({"format": {}}, "format.type"),
        ({"format": "a"}, "format"),
        ({"format": {"type": "dispatch"}}, "format.type"),
        ({"format": {"type": "token", "token": 1}}, "format.type"),
        ({"format": {"type": ["tag"]}}, "format.type"),
        ({"format": const("a"), "triggers": ["a"]}, "triggers"),
        ({"format": {"type": "const_string"}}, "format.value"),
        ({"format": {**SCHEMA, "style": "qwen_xml"}}, "format.style"),
        ({"format": {**SCHEMA, "any_order": True}}, "format.any_order"),
        ({"format": {"type": "json_schema", "json_schema": 5}}, "format.json_schema"),
        ({"format": {"type": "json_schema", "json_schema": DEEP_SCHEMA}}, "format.json_schema"),
        ({"format": {"type": "regex", "pattern": ""}}, "format.pattern"),
        ({"format": {"type": "grammar", "grammar": "root ::= x"}}, "format.grammar"),
        ({"format": joined("or", *[{"type": "grammar", "grammar": 'start: "a"'}] * 9)}, "format.elements[8].grammar"),
        ({"format": {**ANY, "max_tokens": 5}}, "format.max_tokens"),
        ({"format": {**ANY, "excludes": [""]}}, "format.excludes[0]"),
        ({"format": {**ANY, "excludes": "a"}}, "format.excludes"),
        ({"format": joined("sequence")}, "format.elements"),
        ({"format": joined("or", const("a"), {"type": "or"})}, "format.elements[1].elements"),
        ({"format": {"type": "star"}}, "format.content"),
        ({"format": {"type": "repeat", "min": 2, "max": 1, "content": ANY}}, "format.max"),
        ({"format": {"type": "repeat", "min": 2, "content": ANY}}, "format.max"),
        ({"format": {"type": "repeat", "min": -1, "max": 1, "content": ANY}}, "format.min"),
        ({"format": tag("a", ANY, [])}, "format.end"),
        ({"format": {**tag("a"), "begin": {"type": "token", "token": 5}}}, "format.begin"),
        ({"format": {**tag("a"), "more": 1}}, "format.more"),
        ({"format": triggered(const("a"))}, "format.tags[0].type"),
        ({"format": triggered(tag("x"))}, "format.tags[0].begin"),
        ({"format": triggered(tag("<f1"), triggers=["<f", "<"])}, "format.tags[0].begin"),
        ({"format": triggered(tag("<f1"), triggers=["<f", "x"])}, "format.tags"),
        ({"format": triggered()}, "format.tags"),
        ({"format": {**triggered(tag("<f")), "triggers": []}}, "format.triggers"),
        ({"format": DEEP}, "format" + ".content" * 33),
        ({"format": joined("sequence", ANY, SCHEMA)}, ""),
        ({"format": {"type": "star", "content": ANY}}, ""),
        ({"format": triggered(tag("<f", ANY, ""))}, ""),
        ({**LEGACY, "triggers": ["x"]}, "structures[0].begin"),
        ({**LEGACY, "structures": [{"begin": "<f="}]}, "structures[0].end"),
        ({**LEGACY, "structures": []}, "structures"),
        ({**LEGACY, "structures": [5]}, "structures[0]"),
        ({**LEGACY, "triggers": [5]}, "triggers[0]"),
        ({**LEGACY, "more": 5}, "more"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(form: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_grammar(BodyFields({"response_format": {"type": "structural_tag", **form}}))
    assert (caught.value.status, caught.value.param) == (400, f"response_format.{param}".rstrip("."))
