"""Grammars of answers that may have calls: free text in which they follow their schemas, or another form."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from cutting import joined
from grammar_walk import SPELLED, TOOLS, Walk, calls_of

from services.streamer.agents.answer_grammars import ANY, calls_alone, calls_or_form, text_with_calls
from services.streamer.agents.families import ToolFormat
from services.streamer.agents.form_or_calls import FormOrCalls
from services.streamer.agents.grammars import choice, json_schema, lark, regex

BY_NAME = {each.name: each for each in SPELLED}
SPECIAL = [False, True]
formats = pytest.mark.parametrize("format", SPELLED, ids=lambda each: each.name)
# The text around calls of the others stands in messages.
in_text = pytest.mark.parametrize(
    "format", [each for each in SPELLED if each.spelling and not each.spelling.in_messages], ids=lambda each: each.name
)
specials = pytest.mark.parametrize("special", SPECIAL, ids=["text", "special"])


def walk_of(format: ToolFormat, special: bool, folder: Path) -> Walk:
    return Walk(folder, (*format.markers, "<think>", "</think>") if special else ())


def check_call(name: str, arguments: str) -> None:
    value = json.loads(arguments)
    if name == "weather":
        assert set(value) == {"city", "days"} and value["city"] in ("Bonn", 'K"öln') and 0 < value["days"] < 10
    else:
        assert (name, value) == ("get-time.now", {})


def read(format: ToolFormat, text: str, *, form: bool = False) -> tuple[str, list[tuple[str, str]]]:
    assert format.spelling is not None
    parser = format.parser({})
    reader = FormOrCalls(parser, format.spelling.opener) if form else parser
    return joined([*(part for character in text for part in reader.feed(character)), *reader.flush()])


@in_text
@specials
def test_calls_in_a_text_follow_their_schemas(format: ToolFormat, special: bool, tmp_path: Path) -> None:
    walk, draw = walk_of(format, special, tmp_path), random.Random(3)
    grammar = lark(text_with_calls(calls_of(format, walk)))
    assert format.spelling is not None
    seen = set()
    for begin in ["", "Let me see. ", "{" if format.spelling.at_start else "\n"] * 5:
        opener = format.spelling.opener if begin != "{" else ""
        content, calls = read(format, walk.text(grammar, draw, begin + opener))
        assert calls and content.startswith(begin.strip(" {\n"))
        for call in calls:
            check_call(*call)
        seen |= {name for name, _ in calls}
    assert seen == set(TOOLS)


@in_text
@specials
def test_a_text_without_calls_is_free(format: ToolFormat, special: bool, tmp_path: Path) -> None:
    walk = walk_of(format, special, tmp_path)
    grammar = lark(text_with_calls(calls_of(format, walk)))
    assert format.spelling is not None
    opener = format.spelling.opener
    for text in ["", "Hello, {world}", "a\n\n<b> [c] ```json\n{}\n```", "ü" * 50, "a " + opener[:-1]]:
        assert walk.allows(grammar, text), text
    for text in [opener, "a" + opener, f"a{opener}b", f'a{opener}{{"name": "other"']:
        assert not walk.allows(grammar, text), text
    if format.spelling.at_start:
        assert not walk.allows(grammar, "{x") and walk.allows(grammar, "a{x")


@specials
def test_a_call_without_the_marker_before_all_calls_is_no_text(special: bool, tmp_path: Path) -> None:
    """Its reader would take it for a call."""
    format = BY_NAME["deepseek_v31"]
    walk = walk_of(format, special, tmp_path)
    assert format.spelling is not None
    [also] = format.spelling.also_read
    assert not walk.allows(lark(text_with_calls(calls_of(format, walk))), f"a{also}b")


@in_text
@specials
def test_an_answer_ends_with_its_one_call(format: ToolFormat, special: bool, tmp_path: Path) -> None:
    walk, draw = walk_of(format, special, tmp_path), random.Random(4)
    grammar = lark(text_with_calls(calls_of(format, walk, several=False)))
    assert format.spelling is not None
    for _ in range(4):
        text = walk.text(grammar, draw, "So: " + format.spelling.opener)
        assert len(read(format, text)[1]) == 1 and not walk.allows(grammar, text + " And")
    assert walk.allows(grammar, "No call.")


CALL = '<tool_call>\n{"name": "get-time.now", "arguments": {}}\n</tool_call>'
BAD = "<tool_call>hm"


@specials
@pytest.mark.parametrize(
    ("end", "text", "allowed"),
    [
        ("<think>\n", f"hm {BAD}\n</think>\n\nWell. {CALL}", True),
        ("<think>\n", f"hm {BAD}\n</think>\n\nWell. {BAD}", False),
        ("<think>\n", f"hm {BAD}", True),
        ("", f"\n<think>hm {BAD}</think>{CALL} Well.", True),
        ("", f"<think>hm {BAD}</think>{BAD}", False),
        ("", f"<think>hm {BAD}", True),
        ("", BAD, False),
        ("", "hm </think> hm", True),
        ("<think>\n\n</think>\n\n", BAD, False),
    ],
)
def test_reasoning_may_have_what_would_be_a_call(
    end: str, text: str, allowed: bool, special: bool, tmp_path: Path
) -> None:
    # A text in which special tokens are written out is another one.
    if special and ("</think> hm" in text or (BAD in text and allowed)):
        text = text.replace("hm </think>", "hm").replace(BAD, "tool call")
    walk = walk_of(BY_NAME["hermes"], special, tmp_path)
    calls = calls_of(BY_NAME["hermes"], walk, end, "qwen3")
    assert walk.allows(lark(text_with_calls(calls)), text) == allowed


FORM = json_schema({"type": "object", "properties": {"a": {"enum": ["<tool_call>", "[TOOL_CALLS]", "x"]}},
                    "required": ["a"], "additionalProperties": False})  # fmt: skip


@in_text
@specials
def test_an_answer_is_calls_or_the_form(format: ToolFormat, special: bool, tmp_path: Path) -> None:
    walk, draw = walk_of(format, special, tmp_path), random.Random(5)
    grammar = calls_or_form(calls_of(format, walk), FORM)
    forms = set()
    for _ in range(24):
        text = walk.text(grammar, draw)
        content, calls = read(format, text, form=True)
        if content:
            assert not calls and content == text
            forms.add(json.loads(content)["a"])
        for call in calls:
            check_call(*call)
        assert bool(content) != bool(calls)
    assert forms
    assert format.spelling is not None
    assert not walk.allows(grammar, "Hello") and not walk.allows(grammar, "")
    for _ in range(3):
        assert read(format, walk.text(grammar, draw, format.spelling.opener), form=True)[1]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (json_schema({"type": "array", "items": {"enum": ["[TOOL_CALLS]"]}, "minItems": 2}),
         '["[TOOL_CALLS]", "[TOOL_CALLS]"]'),
        (json_schema({"type": "object", "properties": {"name": {"const": "x"}, "arguments": {"type": "object"}}}),
         '{"name": "x", "arguments": {}}'),
        (choice(["<tool", "tool_call"]), "<tool"),
        (choice(["  a "]), "  a "),
        (choice(["", "a"]), ""),
        (regex("<[a-z]+>!"), "<tool>!"),
        (lark('start: "(" /[a-z]+/ ")"'), "(tool)"),
    ],
)  # fmt: skip
@in_text
@specials
def test_a_form_is_content_as_it_is(
    form: str, text: str, format: ToolFormat, special: bool, tmp_path: Path
) -> None:
    walk = walk_of(format, special, tmp_path)
    grammar = calls_or_form(calls_of(format, walk), form)
    assert read(format, text, form=True) == (text, [])
    if special and "[TOOL_CALLS]" in text and format.name == "mistral":
        # Special tokens are no text of a form.
        return
    assert walk.allows(grammar, text)
    draw: Any = random.Random(6)
    assert format.spelling is not None
    _, calls = read(format, walk.text(grammar, draw, format.spelling.opener), form=True)
    assert calls
    for call in calls:
        check_call(*call)


@pytest.mark.parametrize(
    ("end", "text", "allowed"),
    [
        ("<think>\n", 'hm</think>\n\n{"a": "x"}', True),
        ("<think>\n", f"hm</think>\n\n{CALL}", True),
        ("<think>\n", '{"a": "x"}', False),
        ("", '<think>hm</think>{"a": "x"}', True),
        ("", '{"a": "x"}', True),
        ("", CALL, True),
        ("", f"hm {CALL}", False),
    ],
)
@specials
def test_reasoning_comes_before_both(end: str, text: str, allowed: bool, special: bool, tmp_path: Path) -> None:
    walk = walk_of(BY_NAME["hermes"], special, tmp_path)
    assert walk.allows(calls_or_form(calls_of(BY_NAME["hermes"], walk, end, "qwen3"), FORM), text) == allowed


@pytest.mark.parametrize("name", ["a.b-c_d", "0", "-", "x" * 128, "a..b"])
@in_text
def test_any_name_of_a_tool_is_written_and_read(name: str, format: ToolFormat, tmp_path: Path) -> None:
    walk = walk_of(format, False, tmp_path)
    tools = {name: {"properties": {}, "additionalProperties": False}}
    assert format.spelling is not None
    text = walk.text(lark(text_with_calls(calls_of(format, walk, tools=tools))), random.Random(7),
                     format.spelling.opener)  # fmt: skip
    assert {called for called, _ in read(format, text)[1]} == {name}


GPT_OSS = BY_NAME["openai"]
THOUGHT = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
CALLED = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}"


@pytest.mark.parametrize(
    ("text", "calls", "form", "free"),
    [
        (THOUGHT + CALLED.format("get-time.now", "{}"), True, True, True),
        (CALLED.format("get-time.now", "{}"), True, True, True),
        (CALLED.format("get-time.now", '{"a": 1}'), False, False, False),
        (CALLED.format("other", "{}"), False, False, False),
        (THOUGHT + FINAL + '{"a": "x"}', False, True, True),
        (FINAL + '{"a": "x"}', False, True, True),
        (FINAL + "Hello", False, False, True),
        (THOUGHT + '{"a": "x"}', False, False, False),
        (THOUGHT, False, False, False),
    ],
)
def test_messages_of_gpt_oss_follow_their_schemas(
    text: str, calls: bool, form: bool, free: bool, tmp_path: Path
) -> None:
    walk = Walk(tmp_path, GPT_OSS.markers)
    held = calls_of(GPT_OSS, walk, "<|end|><|start|>assistant", "openai_gptoss")
    grammars = lark(calls_alone(held)), calls_or_form(held, FORM), calls_or_form(held, lark(f"start: {ANY}"))
    assert tuple(walk.allows(each, text) for each in grammars) == (calls, form, free)
