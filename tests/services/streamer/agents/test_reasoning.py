from __future__ import annotations

import pytest
from cutting import cuts
from hypothesis import given, settings
from hypothesis import strategies as st

from services.streamer.agents.families import formats_of
from services.streamer.agents.harmony import Analysis
from services.streamer.agents.reader import AnswerReader
from services.streamer.agents.reasoning import Reasoning


def divided(inside: bool, text: str) -> tuple[str, str]:
    found = set()
    for pieces in [[text], *cuts(text)]:
        parser = Reasoning(inside)
        parts = [*map(parser.feed, pieces), parser.flush()]
        found.add(("".join(each for each, _ in parts), "".join(each for _, each in parts)))
    assert len(found) == 1, found
    return found.pop()


@pytest.mark.parametrize(
    ("inside", "text", "reasoning", "answer"),
    [
        (False, "<think>\nI see.\n\nSo.\n</think>\n\nYes.\n", "I see.\n\nSo.", "Yes.\n"),
        (False, "\n<think></think>Yes", "", "Yes"),
        (False, "Yes. <think>no</think>", "", "Yes. <think>no</think>"),
        (False, " <thin", "", " <thin"),
        (False, "<think> I", "I", ""),
        (False, "", "", ""),
        (True, "I see.\n</think>\n\nYes.", "I see.", "Yes."),
        # Some of these models write the marker although the prompt has it.
        (True, "<think>\nI see.</think>Yes.</think>", "I see.", "Yes.</think>"),
        (True, "I see. </thin", "I see. </thin", ""),
        (True, "</think>Yes", "", "Yes"),
    ],
)
def test_reasoning_and_answer_are_told_apart(inside: bool, text: str, reasoning: str, answer: str) -> None:
    assert divided(inside, text) == (reasoning, answer)


PIECES = ["<think>", "</think>", "<", "</", "think>", " ", "\n\n", "a", "é", "<tool_call>"]


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12), inside=st.booleans())
@settings(max_examples=300, deadline=None)
def test_whatever_the_cut_the_first_closing_marker_divides(pieces: list[str], inside: bool) -> None:
    text = "".join(pieces)
    begin = text.lstrip()
    expected = "", text
    if inside or begin.startswith("<think>"):
        reasoning, _, answer = begin.removeprefix("<think>").partition("</think>")
        expected = reasoning.strip(), answer.lstrip()
    for cut in ([text], pieces, list(text)):
        parser = Reasoning(inside)
        parts = [*map(parser.feed, cut), parser.flush()]
        assert ("".join(each for each, _ in parts), "".join(each for _, each in parts)) == expected


def reader(parser: str, end_of_prompt: str, **how: bool) -> AnswerReader:
    formats = formats_of("hermes", parser, "")
    made = formats.reader({}, end_of_prompt, **{"one_call": False, "quiet": False, **how})
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("parser", "end", "text", "reasoning", "answer"),
    [
        ("qwen3", "<|im_start|>assistant\n", "a</think>b", "", "a</think>b"),
        ("qwen3", "<|im_start|>assistant\n<think>\n", "a</think>b", "a", "b"),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "<think>a</think>b", "", "<think>a</think>b"),
        ("deepseek_r1", "<｜Assistant｜>", "a</think>b", "a", "b"),
        ("deepseek_r1", "<｜Assistant｜></think>", "a", "", "a"),
        ("ernie45", "<think>\n", "a\n</think>\n\n<response>\nb\n</response>\n", "a", "b"),
    ],
)
def test_the_end_of_the_prompt_says_whether_the_answer_begins_inside(
    parser: str, end: str, text: str, reasoning: str, answer: str
) -> None:
    made = reader(parser, end)
    said = [made.feed(text), made.flush()]
    assert "".join(each.reasoning for each in said) == reasoning
    assert "".join(each.content for each in said) == answer


def test_reasoning_may_be_left_out_and_calls_follow_it() -> None:
    made = reader("qwen3", "<think>", quiet=True, one_call=True)
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    said = [made.feed(f"hm </think> {call}{call}"), made.flush()]
    assert [each.reasoning + each.content for each in said] == ["", ""]
    assert [(call.name, call.arguments) for each in said for call in each.calls] == [("f", "{}")]


def test_a_call_in_the_reasoning_is_reasoning() -> None:
    made = reader("qwen3", "<think>")
    assert made.feed("<tool_call>{}</tool_call> ").reasoning == "<tool_call>{}</tool_call>"
    assert made.flush().calls == [] and not made.called


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("no call", False),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}', True),
        ('<tool_call>{"name": "f", "arguments": {"a": 1', False),
        ('<tool_call>{"name": "f", "arguments": {"a": "}', False),
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}', True),
        ('<tool_call>{"name": "f", "arguments": "a"}</tool_call>', True),
        ('<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"name": "g", "arguments": {', False),
    ],
)
def test_a_reader_knows_whether_its_last_call_is_whole(text: str, whole: bool) -> None:
    for pieces in ([text], list(text)):
        made = reader("none", "")
        for piece in pieces:
            made.feed(piece)
        made.flush()
        assert made.calls_are_whole == whole


HARMONY = [
    ("<|channel|>analysis<|message|>I see.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
     "I see.", "Yes.", []),
    ("<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
     "<|start|>assistant<|channel|>analysis<|message|>Two.<|end|><|start|>assistant<|channel|>commentary "
     'to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>', "One.\nTwo.", "I look.", [("f", '{"a": 1}')]),
    # An end is missing; a call in the channel of reasoning; no header at all; the end of the tokens.
    ("<|channel|>analysis<|message|>I <see.<|channel|>final<|message|>Yes.", "I <see.", "Yes.", []),
    ("<|channel|>analysis to=functions.f<|message|>{}<|call|>", "", "", [("f", "{}")]),
    ("Yes. <|", "", "Yes. <|", []),
    ("<|channel|>analysis<|message|>I see.<|en", "I see.<|en", "", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reasoning", "content", "calls"), HARMONY)
def test_messages_of_gpt_oss_are_told_apart_at_every_cut(
    text: str, reasoning: str, content: str, calls: list[tuple[str, str]]
) -> None:
    for pieces in [[text], *cuts(text)]:
        made = formats_of("openai", "openai_gptoss", "").reader({}, "<|start|>assistant", one_call=False, quiet=False)
        assert made is not None
        said = [*map(made.feed, pieces), made.flush()]
        assert "".join(each.reasoning for each in said) == reasoning
        assert "".join(each.content for each in said) == content
        told: dict[int, list[str]] = {}
        for call in (call for each in said for call in each.calls):
            parts = told.setdefault(call.index, ["", ""])
            told[call.index] = [parts[0] + call.name, parts[1] + call.arguments]
        assert [tuple(each) for each in told.values()] == calls


def test_an_answer_of_gpt_oss_without_tools_or_with_a_form_has_no_header() -> None:
    formats = formats_of("openai", "openai_gptoss", "")
    text = '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{"to": 1}'
    for schemas, form in ((None, False), (None, True), ({}, True)):
        made = formats.reader(schemas, "<|start|>assistant", one_call=False, quiet=False, form=form)
        assert made is not None
        said = [made.feed(text), made.flush()]
        assert ("".join(each.reasoning for each in said), "".join(each.content for each in said)) == (
            "Hm.", '{"to": 1}',
        )  # fmt: skip


def test_reasoning_stands_where_its_messages_do() -> None:
    first, between, second = (
        b"<|channel|>analysis<|message|>One.<|end|>", b"<|start|>assistant", b"<|channel|>analysis<|message|>Two",
    )  # fmt: skip
    whole = first + between + second
    assert Analysis(False).parts_of(whole) == [(0, len(first)), (len(first + between), len(whole))]
    assert Analysis(True).parts_of(b"One.<|end|>Yes") == [(0, 11)]
    assert Reasoning(False).parts_of(b" <think>a</think>b") == [(0, 17)] and Reasoning(False).parts_of(b"a") == []


@given(pieces=st.lists(st.sampled_from([
    "<|start|>", "assistant", "<|channel|>", "analysis", "<|message|>", "<|end|>", "<|channel|>analysis<|message|>",
    "a", "<|", "\n",
]), max_size=12))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_however_messages_are_cut_the_same_is_reasoning(pieces: list[str]) -> None:
    text = "".join(pieces)
    found = set()
    for cut in ([text], pieces, list(text)):
        parser = Analysis(False)
        parts = [*map(parser.feed, cut), parser.flush()]
        found.add(("".join(each for each, _ in parts), "".join(each for _, each in parts)))
    [(reasoning, answer)] = found
    spans = Analysis(False).parts_of(text.encode())
    assert len(answer) == len(text) - sum(end - first for first, end in spans)
    assert bool(reasoning) <= bool(spans)
