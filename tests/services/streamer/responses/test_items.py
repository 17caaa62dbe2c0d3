"""Input items as turns of a conversation, and what of them is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from services.api.messages import ChatTurn, ToolCall
from services.streamer.openai.errors import ApiError
from services.streamer.responses.items import read_items

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
MADE = ToolCall(id="c1", name="f", arguments='{"a": 1}')


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **more}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


@pytest.mark.parametrize(
    ("item", "turn"),
    [
        ({"role": "user", "content": "hi"}, ChatTurn(role="user", content="hi")),
        ({"role": "developer", "content": "hi"}, ChatTurn(role="system", content="hi")),
        ({"role": "assistant", "content": "hi", "phase": None}, ChatTurn(role="assistant", content="hi")),
        (
            {"type": "message", "role": "user", "status": "completed", "content": [
                {"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]},
            ChatTurn(role="user", content="ab"),
        ),
        (
            said("hi", id="msg_1", status="incomplete") | {"content": [
                {"type": "output_text", "text": "a", "annotations": [], "logprobs": [{}]},
                {"type": "refusal", "refusal": "b"}]},
            ChatTurn(role="assistant", content="ab"),
        ),
        (CALL, ChatTurn(role="assistant", content=None, tool_calls=[MADE])),
        (thought("hm"), ChatTurn(role="assistant", content="", reasoning="hm")),
        (
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}], "encrypted_content": None},
            ChatTurn(role="assistant", content="", reasoning="short"),
        ),
    ],
)  # fmt: skip
def test_an_item_is_a_turn(item: dict[str, Any], turn: ChatTurn) -> None:
    assert read_items([item], "input") == [turn]


def test_reasoning_text_and_calls_of_one_answer_are_one_turn() -> None:
    second = {**CALL, "call_id": "c2", "arguments": ""}
    items = [thought("hm"), said("on it"), CALL, second]
    calls = [MADE, ToolCall(id="c2", name="f", arguments="{}")]
    assert read_items(items, "input") == [
        ChatTurn(role="assistant", content="on it", tool_calls=calls, reasoning="hm")
    ]


def test_what_does_not_follow_in_that_order_is_another_turn() -> None:
    assert read_items([CALL, said("a"), said("b"), thought("hm")], "input") == [
        ChatTurn(role="assistant", content=None, tool_calls=[MADE]),
        ChatTurn(role="assistant", content="a"),
        ChatTurn(role="assistant", content="b"),
        ChatTurn(role="assistant", content="", reasoning="hm"),
    ]


def test_an_output_answers_a_call_of_these_items_or_of_the_conversation_before() -> None:
    output = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "3"}]}
    answered = ChatTurn(role="tool", content="3", tool_call_id="c1")
    assert read_items([CALL, output], "input")[1:] == [answered]
    before = read_items([CALL], "input")
    assert read_items([output], "input", before) == [answered]
    (named,) = read_items([{**output, "name": "f"}], "input", before)
    assert named == ChatTurn(role="tool", content="3", name="f", tool_call_id="c1")
    with pytest.raises(ApiError) as refused:
        read_items([output], "input")
    assert refused.value.param == "input[0].call_id"


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (3, "input[0]"),
        ({"type": "item_reference", "id": "x"}, "input[0].type"),
        ({"type": ["message"]}, "input[0].type"),
        ({"content": "hi"}, "input[0].role"),
        ({"role": "tool", "content": "hi"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": 3}, "input[0].content"),
        ({"role": "user", "content": [3]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({"role": "user", "content": [{"type": "input_text", "text": 3}]}, "input[0].content[0].text"),
        ({"role": "user", "content": [{"type": "input_text", "text": "a", "x": 1}]}, "input[0].content[0].x"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": "hi", "x": 1}, "input[0].x"),
        ({"role": "user", "content": "hi", "status": "x"}, "input[0].status"),
        ({"role": "user", "content": "hi", "id": 1}, "input[0].id"),
        ({**CALL, "call_id": None}, "input[0].call_id"),
        ({**CALL, "name": None}, "input[0].name"),
        ({**CALL, "arguments": "[]"}, "input[0].arguments"),
        ({**CALL, "arguments": "{"}, "input[0].arguments"),
        ({**CALL, "namespace": "x"}, "input[0].namespace"),
        ({"type": "function_call_output", "output": "x"}, "input[0].call_id"),
        ({"type": "reasoning", "encrypted_content": "x"}, "input[0].encrypted_content"),
        ({"type": "reasoning", "summary": [{"type": "x", "text": "a"}]}, "input[0].summary[0].type"),
        ({"type": "reasoning", "content": "x"}, "input[0].content"),
    ],
)
def test_what_is_wrong_is_named(item: Any, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_items([item], "input")
    assert (refused.value.status, refused.value.param) == (400, param)
    assert refused.value.message.startswith(param)
