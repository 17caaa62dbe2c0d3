"""Every format: calls as models write them, cut anywhere; what is no call is content."""

from __future__ import annotations

import json
from typing import Any

import pytest
from counted_text import work_of
from cutting import Make, read, read_at_every_cut
from hypothesis import given, settings
from hypothesis import strategies as st

from services.api.answer_parsers import AUTO, NONE, REASONING_PARSERS, TOOL_CALL_PARSERS
from services.streamer.agents.families import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    reasoning_format,
    tool_format,
)
from services.streamer.agents.reader import AnswerReader
from services.streamer.agents.reasoning import Reasoning

SCHEMAS = {"f": {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}}
F, G = ("f", '{"a": "x}\\"]{", "b": [1, {"c": null}]}'), ("g", "{}")


def make_of(name: str) -> Make:
    format = tool_format(name, "")
    assert format is not None
    return lambda: format.parser(SCHEMAS)


def obj(call: tuple[str, str], key: str = "arguments") -> str:
    return f'{{"name": "{call[0]}", "{key}": {call[1]}}}'


# Format, what a model writes, content and calls.
WRITTEN: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("hermes", f"<tool_call>\n{obj(F)}\n</tool_call>\n<tool_call>{obj(G)}</tool_call>", "", [F, G]),
    ("hermes", f"Let me see.\n<tool_call>\n{obj(F)}\n</tool_call>\nDone.", "Let me see.\nDone.", [F]),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", [("f", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}, "id": {"x": "}"}} </tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    # Forgotten: the last bracket, the closing tag.
    ("hermes", f'<tool_call>{{"name": "f", "arguments": {F[1]}</tool_call><tool_call>{obj(G)}', "", [F, G]),
    # The end of the tokens.
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "tr', "", [("f", '{"a": "tr')]),
    ("ernie45", f"<response>\nHm.\n</response>\n\n<tool_call>\n{obj(F)}\n</tool_call>\n", "Hm.", [F]),
    ("ernie45", "<response>\nHm.\n</response>\n", "Hm.", []),
    ("mistral", f"[TOOL_CALLS] [{obj(F)}, {obj(G)}]", "", [F, G]),
    ("mistral", f"Well [TOOL_CALLS]f[ARGS]{F[1]}[TOOL_CALLS]g{G[1]}", "Well", [F, G]),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "123456789"}] ok', "ok", [("f", "{}")]),
    ("mistral", f"[TOOL_CALLS] {obj(F)}", "", [F]),
    ("llama3_json", f"{obj(F, 'parameters')}; {obj(G, 'parameters')}", "", [F, G]),
    ("llama3_json", f"<|python_tag|>{obj(F)}", "", [F]),
    ("llama3_json", '{"answer": 42} is it.', '{"answer": 42} is it.', []),
    ("pythonic", '[f(a="x}\\"]{", b=[1, {"c": None}]), g()]', "", [F, G]),
    ("pythonic", "<|python_start|>[f(a=-1.5e3, b='é\\u00e9', c=(True,))]<|python_end|>", "",
     [("f", '{"a": -1500.0, "b": "éé", "c": [true]}')]),
    ("pythonic", "[1, 2] are numbers", "[1, 2] are numbers", []),
    # A backslash means something within quotes alone, and half a surrogate pair is no character.
    ("pythonic", "[\\]<|python_start|>[g()]", "[\\]", [G]),
    ("pythonic", '[f(a="\\ud800")]', "", [("f", '{"a": "\\\\ud800"}')]),
    # Calls before the first that is none.
    ("pythonic", "[f(), g(a=b), f()]", "g(a=b), f()]", [("f", "{}")]),
    ("pythonic", "[g(), f(a=1e999)] so", "f(a=1e999)] so", [G]),
    ("pythonic", "[g(),\n f(), 2]<|python_end|>", "2]", [G, ("f", "{}")]),
    ("pythonic", "[g(), f(a='", "f(a='", [G]),
    ("pythonic", "[g(), ", "", [G]),
    ("deepseek_v3", "Ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n" + F[1] + "\n```"
     "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "Ok", [F, G]),
    ("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>" + F[1] + "<｜tool▁call▁end｜>"
     "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "", [F, G]),
    ("kimi_k2", "Ok.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>" + F[1]
     + "<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
     "<|tool_calls_section_end|>", "Ok.", [F, G]),
    ("qwen3_coder", "Ok.\n<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n"
     "<parameter=o>\n{\"x\": [true]}\n</parameter>\n<parameter=p>\na\nb\n</parameter>\n</function>\n</tool_call>\n"
     "<tool_call>\n<function=g>\n</function>\n</tool_call>",
     "Ok.", [("f", '{"s": "12", "n": 12, "o": {"x": [true]}, "p": "a\\nb"}'), G]),
    # Forgotten: closing tags of parameters.
    ("qwen3_coder", "<function=f>\n<parameter=s>\na<parameter=p>\nb \n\n</function>", "",
     [("f", '{"s": "a", "p": "b"}')]),
    ("glm45", "Ok.\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>12</arg_value>\n<arg_key>n</arg_key>\n"
     "<arg_value>12</arg_value>\n<arg_key>o</arg_key>\n<arg_value>{\"x\": [true]}</arg_value>\n</tool_call>"
     "<tool_call>g\n</tool_call>", "Ok.", [("f", '{"s": "12", "n": 12, "o": {"x": [true]}}'), G]),
    ("glm45", "<tool_call>f<arg_key>s</arg_key><arg_value> a\nb </arg_value></tool_call>", "",
     [("f", '{"s": " a\\nb "}')]),
    # Forgotten: the closing tag of a value.
    ("glm45", "<tool_call>f<arg_key>s</arg_key><arg_value>a<arg_key>n</arg_key><arg_value>2</arg_value></tool_call>",
     "", [("f", '{"s": "a", "n": 2}')]),
    ("openai", f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{F[1]}<|call|>", "", [F]),
    ("openai", "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary "
     f"to=functions.f <|constrain|>json<|message|>{F[1]}<|end|><|start|>assistant to=functions.g<|channel|>commentary "
     "json<|message|><|call|>", "Let me see.", [F, G]),
    ("openai", " to=functions.f<|channel|>commentary json<|message|> " + F[1], "", [F]),
    ("openai", "<|channel|>final<|message|>Well.\n<|return|>", "Well.\n", []),
    ("openai", "<|channel|>commentary<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Two.",
     "One.\nTwo.", []),
    # Without a header, without the end of the message before it, and a call of what is no function.
    ("openai", " to a question: to=functions.f", " to a question: to=functions.f", []),
    ("openai", "Hm.<|channel|>commentary to=functions.g<|message|>{}", "Hm.", [G]),
    ("openai", "<|channel|>commentary to=browser.open<|message|>{}<|call|>", "{}", []),
    # The end of the tokens.
    ("openai", "Hm.<|start|>assistant<|chan", "Hm.", []),
    ("openai", '<|channel|>commentary to=functions.f<|message|>{"a": "<|mess', "", [("f", '{"a": "<|mess')]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "content", "calls"), WRITTEN)
def test_what_a_model_writes_is_read_at_every_cut(
    name: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert read_at_every_cut(make_of(name), text) == (content, calls)


def test_kimis_calls_keep_the_ids_that_the_model_wrote_and_others_get_new_ones() -> None:
    text = "<|tool_call_begin|>functions.a.b:{}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    reader = AnswerReader(None, None, make_of("kimi_k2")(), lambda: "new")
    said = reader.feed(text.format(7) + text.format(8))
    assert [(call.id, call.name) for call in said.calls] == [("functions.a.b:7", "a.b"), ("functions.a.b:8", "a.b")]
    [call] = AnswerReader(None, None, make_of("hermes")(), lambda: "new").feed(f"<tool_call>{obj(F)}</tool_call>").calls
    assert call.id == "new"


MALFORMED = [
    ("hermes", "<tool_call>not a call</tool_call>"),
    ("hermes", 'a <tool_call>{"name": 3, "arguments": {}}</tool_call> b'),
    ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}'),
    ("hermes", '<tool_call>{"name": "f", "argu'),
    ("hermes", '<tool_call>{"arguments": {"a": 1e999}, "name": "f"}'),
    ("hermes", "x < y, and <tool"),
    ("hermes", "  \n "),
    ("llama3_json", "<|python_tag|>print(1)"),
    ("llama3_json", '{"name": "f", "parameters"'),
    ("pythonic", "[f(a=b)]"),
    ("pythonic", "[f(a=1"),
    ("pythonic", "[f(a=" + "[" * 99 + "]" * 99 + ")]"),
    ("pythonic", "[f(a=1e999)]"),
    ("deepseek_v31", "<｜tool▁call▁begin｜>f{}"),
    ("kimi_k2", "<|tool_call_begin|>functions.f<|tool_call_argument_begin|>{}"),
    ("kimi_k2", "<|tool_call_begin|>functions.f:0{}"),
    ("qwen3_coder", "<function=f"),
    ("glm45", "<tool_call>f\n<arg_key>s</arg_key>"),
    ("glm45", '<tool_call>{"name": "f"}</tool_call>'),
    ("openai", "a <| b |> <|constrain|"),
    ("openai", " to=functions.f"),
]


@pytest.mark.parametrize(("name", "text"), MALFORMED)
def test_what_is_no_call_is_content(name: str, text: str) -> None:
    assert read_at_every_cut(make_of(name), text) == (text, [])


MALFORMED_BEHIND_A_TOKEN = [
    ("[TOOL_CALLS] [nothing", "[nothing"),
    ("[TOOL_CALLS] and more", "and more"),
    ("[TOOL_CALLS] " + "and more " * 200, "and more " * 200),
    ("a \n[TOOL_CALLS]", "a"),
    ("a \n[TOOL_CALLS] b", "a b"),
    ("[TOOL_CALLS]", ""),
    ("[TOOL_CALLS] [ ] b", "[ ] b"),
    ('[TOOL_CALLS] [{"x": 1}]', '[{"x": 1}]'),
    ('[TOOL_CALLS] [[{"name": "f", "arguments": {}}]]', '[[{"name": "f", "arguments": {}}]]'),
    ("[TOOL_CALLS]f[ARGS]", "f[ARGS]"),
    ('[TOOL_CALLS]f[TOOL_CALLS]{"name": 1}', 'f[TOOL_CALLS]{"name": 1}'),
]


@pytest.mark.parametrize(("text", "content"), MALFORMED_BEHIND_A_TOKEN)
def test_a_token_before_what_is_no_call_is_no_content(text: str, content: str) -> None:
    assert read_at_every_cut(make_of("mistral"), text) == (content, [])


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(max_size=6), JSON, max_size=4)
CALLS = st.lists(st.tuples(st.sampled_from(["f", "get_time"]), ARGUMENTS), min_size=1, max_size=3)
WRITERS = {
    "hermes": lambda calls: "\n".join(f"<tool_call>\n{obj(each)}\n</tool_call>" for each in calls),
    "mistral": lambda calls: f"[TOOL_CALLS] [{', '.join(map(obj, calls))}]",
    "llama3_json": lambda calls: "; ".join(obj(each, "parameters") for each in calls),
    "deepseek_v31": lambda calls: "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>" for name, arguments in calls
    ),
    "kimi_k2": lambda calls: "".join(
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
        for number, (name, arguments) in enumerate(calls)
    ),
    "openai": lambda calls: "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|end|>"
        for name, arguments in calls
    ),
}


@pytest.mark.parametrize("name", WRITERS)
@given(calls=CALLS, indent=st.sampled_from([None, 2]), ascii=st.booleans(), size=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_arguments_are_the_text_that_the_model_wrote(
    name: str, calls: list[tuple[str, Any]], indent: int | None, ascii: bool, size: int
) -> None:
    written = [(each, json.dumps(value, indent=indent, ensure_ascii=ascii)) for each, value in calls]
    text = WRITERS[name](written)
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    assert read(make_of(name), pieces) == ("", written)


PIECES = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>", "<|tool_call_begin|>", "functions.f:0", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
    "<｜tool▁call▁end｜>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>", " to=functions.f",
    "<function=", "</function>", "<parameter=", "</parameter>", "<response>", "```", "function",
    '{"name": "f", "arguments": ', '"', "\\", "{", "}", "[", "]", "(", ")", ",", ";", ":", "=", ">", " ", "\n", "f",
    "1", "'", "é", "\0", "null", "e999",
]  # fmt: skip


@pytest.mark.parametrize("name", TOOL_CALL_PARSERS)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=24))
@settings(max_examples=150, deadline=None)
def test_no_text_raises_and_no_cut_changes_what_is_read(name: str, pieces: list[str]) -> None:
    text = "".join(pieces)
    whole = read(make_of(name), [text])
    assert read(make_of(name), pieces) == whole == read(make_of(name), list(text))


CALL = '{"name": "f", "arguments": {}}'
# Repeated behind a beginning: what is held, and for how long, differs.
RUNS = [
    *(("", piece) for piece in [
        *PIECES[:14], "<tool_call>{", "[f(", '{"name": "f", "arguments": {"a":', " ", "\n<", "[", ";",
    ]),
    *((begin, " \n") for begin in [
        "a", "<think>", "<tool_call>", f"<tool_call>{CALL[:-1]}", f"<tool_call>{CALL}", "[TOOL_CALLS]",
        "[TOOL_CALLS] [", f"[TOOL_CALLS] [{CALL}", f"[TOOL_CALLS] [{CALL},", "[TOOL_CALLS]f[ARGS]", "<|python_tag|>",
        f"{CALL}", f"{CALL};", "<|python_start|>", "<function=f><parameter=s>", "<response>", "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}", "<|start|>", "<|channel|>final<|message|>",
        "<|channel|>commentary to=functions.f<|message|>",
    ]),
    *((begin, "x ") for begin in [
        '<tool_call>{"a": "', '<tool_call>{"name": "f", "arguments": {"a": "', "<function=f><parameter=s>", "[f(a='",
        "[TOOL_CALLS]", "<think>", "a",
    ]),
]  # fmt: skip


def work(name: str, begin: str, piece: str, length: int, cut: int) -> int:
    text = begin + piece * (length // len(piece))
    parser = AnswerReader(Reasoning(False), None, make_of(name)(), lambda: "")
    return work_of([text[place : place + cut] for place in range(0, len(text), cut)], parser.feed)


@pytest.mark.parametrize("name", TOOL_CALL_PARSERS)
def test_the_work_grows_with_the_text_and_not_with_its_square(name: str) -> None:
    for begin, piece in RUNS:
        once, twice = (work(name, begin, piece, length, 6) for length in (4_000, 8_000))
        assert twice < 2.5 * once + 2000, (begin, piece, once, twice)


def test_every_name_of_a_setting_has_a_row_and_every_row_a_name() -> None:
    assert {each.name for each in TOOL_FORMATS} == set(TOOL_CALL_PARSERS)
    assert {each.name for each in REASONING_FORMATS} == set(REASONING_PARSERS)


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("{{ messages }}", "hermes", None),
        ("{{ tools }}<tool_call> ... <|im_start|>", "hermes", None),
        ("{{ tools }}<tool_call> ... </think>", "hermes", "qwen3"),
        ("{{ tools }}<tool_call><function=", "qwen3_coder", None),
        ("{{ tools }}<tool_call><arg_key></think>", "glm45", "qwen3"),
        ("{{ tools }}[TOOL_CALLS]", "mistral", None),
        ("{{ tools }}<|start_header_id|>ipython", "llama3_json", None),
        ("{{ tools }}<｜Assistant｜><｜tool▁call▁begin｜>```json</think>", "deepseek_v3", "deepseek_r1"),
        ("{{ tools }}<｜Assistant｜><｜tool▁call▁begin｜></think>", "deepseek_v31", "deepseek_r1"),
        ("{{ tools }}<|tool_calls_section_begin|><|tool_call_begin|></think>", "kimi_k2", "qwen3"),
        ("{{ tools }}<think><tool_call><response>", "ernie45", "ernie45"),
        ("{{ tools }}<|start|>assistant<|channel|>analysis<|message|>", "openai", "openai_gptoss"),
        # They know calls, but are told of tools in words.
        ("{{ m.tool_calls }}<｜Assistant｜><｜tool▁call▁begin｜>```json</think>", "hermes", "deepseek_r1"),
        ("{{ m.tool_calls }}[TOOL_CALLS]", "hermes", None),
    ],
)
def test_the_template_tells_the_format(template: str, tools: str, reasoning: str | None) -> None:
    found, thinking = tool_format(AUTO, template), reasoning_format(AUTO, template)
    assert found is not None and found.name == tools
    assert (thinking and thinking.name) == reasoning
    assert tool_format(NONE, template) is None and reasoning_format(NONE, template) is None
