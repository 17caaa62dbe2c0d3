from __future__ import annotations

from typing import Any

import pytest

from services.api.messages import ChatTurn, Encode, ToolCall
from services.streamer.messages.request import parse_count, parse_messages
from services.streamer.openai.errors import ApiError
from services.streamer.openai.request import RequestLimits

HI = {"role": "user", "content": "hi"}
CALL = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bonn"}}
CALLED = ToolCall(id="c1", name="weather", arguments='{"city":"Bonn"}')


def turns(*messages: Any, **fields: Any) -> list[ChatTurn]:
    (prompt,) = parse_messages(body(*messages, **fields), RequestLimits(max_messages=10)).prompts
    assert isinstance(prompt, Encode) and prompt.turns is not None
    return prompt.turns


def body(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 5, "messages": list(messages), **fields}


def text(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def result(**fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "c1", **fields}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def test_texts_and_blocks_of_text_are_turns() -> None:
    blocks = [text("a", cache_control={"type": "ephemeral"}, citations=None), text("b")]
    told = turns({"role": "user", "content": blocks}, {"role": "assistant", "content": "c"}, HI)
    assert told == [
        ChatTurn(role="user", content="a\n\nb"),
        ChatTurn(role="assistant", content="c"),
        ChatTurn(role="user", content="hi"),
    ]


@pytest.mark.parametrize(
    ("system", "told"), [("be brief", "be brief"), ([text("be"), text("brief")], "be\n\nbrief"), ("", None), ([], None)]
)
def test_the_system_prompt_is_the_first_turn(system: Any, told: str | None) -> None:
    expected = [] if told is None else [ChatTurn(role="system", content=told)]
    assert turns(HI, system=system) == [*expected, ChatTurn(role="user", content="hi")]


def test_a_message_of_the_system_stays_in_its_place() -> None:
    assert [each.role for each in turns(HI, {"role": "system", "content": "now brief"})] == ["user", "system"]


def test_messages_of_one_role_are_one_turn() -> None:
    told = turns(HI, user(text("there")), assistant(text("a")), assistant(CALL), user(result(content="sunny")))
    assert told[:2] == [
        ChatTurn(role="user", content="hi\n\nthere"),
        ChatTurn(role="assistant", content="a", tool_calls=[CALLED]),
    ]


def test_calls_and_results_are_turns_of_tools() -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    told = turns(
        HI,
        assistant(thinking, {"type": "redacted_thinking", "data": "x"}, CALL),
        user(text("so"), result(content="sunny"), text("and"), text("then")),
    )
    assert told[1:] == [
        ChatTurn(role="assistant", content=None, tool_calls=[CALLED], reasoning="Hm."),
        ChatTurn(role="user", content="so"),
        ChatTurn(role="tool", content="sunny", name="weather", tool_call_id="c1"),
        ChatTurn(role="user", content="and\n\nthen"),
    ]


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({"content": "no city", "is_error": True}, "Error: no city"),
        ({"content": [text("a"), text("b")], "is_error": False}, "a\n\nb"),
        ({}, ""),
        ({"content": []}, ""),
    ],
)
def test_a_result_may_be_a_text_or_blocks_or_an_error(fields: dict[str, Any], content: str) -> None:
    (turn,) = turns(user(result(**fields)))
    # Nobody has called it: there is no name.
    assert turn == ChatTurn(role="tool", content=content, tool_call_id="c1")


def test_an_empty_message_is_an_empty_turn() -> None:
    """A client sends back what an answer was, and an answer may be empty."""
    assert [each.content for each in turns(user(), assistant(), HI)] == ["", "", "hi"]


def test_an_answer_that_was_begun_is_refused_and_counted() -> None:
    given = body(HI, assistant(text("I")))
    with pytest.raises(ApiError) as caught:
        parse_messages(given, RequestLimits())
    assert caught.value.param == "messages[1].role"
    del given["max_tokens"]
    assert len(parse_count(given, RequestLimits())[1].turns or ()) == 2


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([], "messages"),
        ([HI] * 11, "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "a"}], "messages[0].role"),
        ([{"role": "tool", "content": "a"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{**HI, "name": "x"}], "messages[0].name"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([user("hi")], "messages[0].content[0]"),
        ([user(*[text("a")] * 257)], "messages[0].content"),
        ([user({"text": "a"})], "messages[0].content[0].type"),
        ([user({"type": ["text"]})], "messages[0].content[0].type"),
        ([user(IMAGE)], "messages[0].content[0].type"),
        ([user({"type": "document"})], "messages[0].content[0].type"),
        ([user(CALL)], "messages[0].content[0].type"),
        ([user(text("a"), {"type": "text"})], "messages[0].content[1].text"),
        ([user(text(5))], "messages[0].content[0].text"),  # type: ignore[arg-type]
        ([user(text("a", cache_control=5))], "messages[0].content[0].cache_control"),
        ([user(text("a", citations=[{}]))], "messages[0].content[0].citations"),
        ([user(text("a", id="x"))], "messages[0].content[0].id"),
        ([user({"type": "tool_result", "content": "a"})], "messages[0].content[0].tool_use_id"),
        ([user(result(content=5))], "messages[0].content[0].content"),
        ([user(result(content=[IMAGE]))], "messages[0].content[0].content[0].type"),
        ([user(result(is_error="yes"))], "messages[0].content[0].is_error"),
        ([user(result(name="weather"))], "messages[0].content[0].name"),
        ([assistant(result()), HI], "messages[0].content[0].type"),
        ([assistant({**CALL, "id": None}), HI], "messages[0].content[0].id"),
        ([assistant({**CALL, "id": "x" * 257}), HI], "messages[0].content[0].id"),
        ([assistant({**CALL, "name": None}), HI], "messages[0].content[0].name"),
        ([assistant({**CALL, "input": None}), HI], "messages[0].content[0].input"),
        ([assistant({**CALL, "input": "{}"}), HI], "messages[0].content[0].input"),
        ([assistant({**CALL, "caller": {"type": "code_execution"}}), HI], "messages[0].content[0].caller"),
        ([assistant({"type": "thinking"}), HI], "messages[0].content[0].thinking"),
        ([assistant({"type": "thinking", "thinking": "", "signature": 1}), HI], "messages[0].content[0].signature"),
        ([assistant({"type": "redacted_thinking", "data": 5}), HI], "messages[0].content[0].data"),
        ([{"role": "system", "content": [CALL]}, HI], "messages[0].content[0].type"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_message_is_named(messages: list[Any], where: str) -> None:
    with pytest.raises(ApiError) as caught:
        turns(*messages)
    assert (caught.value.status, caught.value.param) == (400, where) and where in caught.value.message


def test_an_image_is_refused_by_its_name() -> None:
    with pytest.raises(ApiError, match="'image' is not supported there: text, tool_result only"):
        turns(user(text("what is it?"), IMAGE))


@pytest.mark.parametrize(("system", "where"), [(5, "system"), ([IMAGE], "system[0].type"), (["a"], "system[0]")])
def test_what_is_wrong_with_the_system_prompt_is_named(system: Any, where: str) -> None:
    with pytest.raises(ApiError) as caught:
        turns(HI, system=system)
    assert caught.value.param == where
