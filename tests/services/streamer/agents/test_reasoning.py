from __future__ import annotations

import pytest
from cutting import cuts
from hypothesis import given, settings
from hypothesis import strategies as st

from services.streamer.agents.families import formats_of
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
