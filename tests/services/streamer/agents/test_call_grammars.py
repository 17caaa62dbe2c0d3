"""Grammars of calls as the library compiles them: what they allow, the format's parser reads as calls of the schema."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from cutting import joined
from grammar_walk import SPELLED, TOOLS, Walk, grammar_of

from services.api.grammars import GrammarError, started
from services.streamer.agents.families import TOOL_FORMATS, Formats, ToolFormat, reasoning_format
from services.streamer.agents.grammars import choice, json_schema, lark, regex


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("format", SPELLED, ids=lambda each: each.name)
def test_what_a_grammar_allows_is_read_as_calls_of_its_tools(
    format: ToolFormat, special: bool, tmp_path: Path
) -> None:
    walk = Walk(tmp_path, format.markers if special else ())
    grammar = grammar_of(format, walk)
    draw = random.Random(1)
    seen = set()
    for _ in range(12):
        text = walk.text(grammar, draw)
        parser = format.parser({})
        content, calls = joined(parser.feed(text) + parser.flush())
        assert content == "" and calls, text
        for name, arguments in calls:
            value = json.loads(arguments)
            if name == "weather":
                assert value["city"] in ("Bonn", 'K"öln') and 0 < value["days"] < 10
            else:
                assert value == {}
            seen.add(name)
    assert seen == set(TOOLS)


@pytest.mark.parametrize("format", SPELLED, ids=lambda each: each.name)
def test_one_call_is_one_call(format: ToolFormat, tmp_path: Path) -> None:
    walk = Walk(tmp_path, ())
    grammar, draw = grammar_of(format, walk, several=False), random.Random(2)
    for _ in range(8):
        parser = format.parser({})
        text = walk.text(grammar, draw)
        assert len(joined(parser.feed(text) + parser.flush())[1]) == 1


MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
HERMES = next(each for each in SPELLED if each.name == "hermes")


# As Qwen3 has them, markers are tokens of their own and not special.
@pytest.fixture(params=["spelled", "special", "added"])
def marked(request: pytest.FixtureRequest, tmp_path: Path) -> Walk:
    return Walk(tmp_path, () if request.param == "spelled" else MARKERS, request.param != "added")


# The end of the prompt, a text, and whether it is one.
REASONED = [
    ("<think>\n", "hm <x\n</think>\n\nANSWER", True),
    ("<think>\n", "ANSWER", False),
    ("", "<think>hm</think>ANSWER", True),
    ("", "ANSWER", True),
    ("", "hm ANSWER", False),
    ("<think>\n\n</think>\n\n", "ANSWER", True),
    ("<think>\n\n</think>\n\n", "<think>hm</think>ANSWER", False),
]


@pytest.mark.parametrize(("end", "text", "allowed"), REASONED)
def test_reasoning_comes_before_the_calls(end: str, text: str, allowed: bool, marked: Walk) -> None:
    call = '<tool_call>\n{"name": "get-time.now", "arguments": {}}\n</tool_call>'
    assert marked.allows(grammar_of(HERMES, marked, end, "qwen3"), text.replace("ANSWER", call)) == allowed


NUMBERED = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("form", "answer", "wrong"),
    [
        (json_schema(NUMBERED), '{"a": 1}', "{}"),
        (regex("[a-z]+/[0-9]{2}"), "ab/12", "ab/1"),
        (choice(["yes", "no"]), "no", "perhaps"),
        (lark('start: word+\nword: "x" | "y"'), "xyx", "xz"),
    ],
)
@pytest.mark.parametrize(("end", "text", "allowed"), REASONED)
def test_reasoning_comes_before_a_form(
    form: str, answer: str, wrong: str, end: str, text: str, allowed: bool, marked: Walk
) -> None:
    reasoning = reasoning_format("qwen3", "")
    grammar = Formats(reasoning=reasoning).form_grammar(form, end, marked.special)
    assert marked.allows(grammar, text.replace("ANSWER", answer)) == allowed
    assert not marked.allows(grammar, text.replace("ANSWER", wrong))
    assert Formats().form_grammar(form, end, marked.special) == form


def test_a_schema_that_cannot_be_held_is_told(tmp_path: Path) -> None:
    walk = Walk(tmp_path, ())
    (hermes,) = [each for each in SPELLED if each.name == "hermes"]
    with pytest.raises(GrammarError):
        started(walk.vocabulary, grammar_of(hermes, walk, tools={"f": {"type": 5}}))


@pytest.mark.parametrize("name", ["pythonic", "qwen3_coder", "glm45"])
def test_formats_without_json_cannot_be_held_to(name: str) -> None:
    (format,) = [each for each in TOOL_FORMATS if each.name == name]
    assert Formats(format).calls(TOOLS, "", {}, several=True) is None


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("format", SPELLED, ids=lambda each: each.name)
def test_lists_in_arguments_are_as_long_as_their_schema_says(
    format: ToolFormat, several: bool, tmp_path: Path
) -> None:
    walk, draw = Walk(tmp_path, format.markers), random.Random(8)
    days = {"type": "array", "items": {"enum": ["Mo", "Tu"]}, "minItems": 2, "maxItems": 3}
    tools = {"f": {"properties": {"days": days}, "required": ["days"], "additionalProperties": False}}
    grammar = grammar_of(format, walk, tools=tools, several=several)
    lengths = set()
    for _ in range(8):
        text = walk.text(grammar, draw)
        parser = format.parser({})
        calls = joined(parser.feed(text) + parser.flush())[1]
        assert several or len(calls) == 1
        lengths |= {len(json.loads(arguments)["days"]) for _, arguments in calls}
    assert lengths == {2, 3}


def test_models_with_a_token_before_arguments_write_names_before_it(tmp_path: Path) -> None:
    (mistral,) = [each for each in SPELLED if each.name == "mistral"]
    named, listed = "[TOOL_CALLS]get-time.now[ARGS]{}", '[TOOL_CALLS] [{"name": "get-time.now", "arguments": {}}]'
    for markers, text, other in ((mistral.markers, named, listed), ((), listed, named)):
        walk = Walk(tmp_path, markers)
        grammar = grammar_of(mistral, walk)
        assert walk.allows(grammar, text) and not walk.allows(grammar, other)
    walk = Walk(tmp_path, ("[TOOL_CALLS]",))
    assert walk.allows(grammar_of(mistral, walk), listed)
