from __future__ import annotations

from typing import Any

import orjson
import pytest

from services.api.messages import ChatTurn, Encode, ToolCall
from services.streamer.openai.errors import ApiError
from services.streamer.openai.request import Request, RequestLimits, parse_chat, parse_tokenize
from services.streamer.openai.tools import MAX_CALLS, MAX_TOOLS

USER = {"role": "user", "content": "hi"}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}  # fmt: skip
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
DEEP: Any = {}
for _ in range(300):
    DEEP = {"a": DEEP}


def chat(*messages: Any, **fields: Any) -> Request:
    return parse_chat({"model": "m", "messages": [USER, *messages], **fields}, RequestLimits())


def encode(request: Request) -> Encode:
    (prompt,) = request.prompts
    assert isinstance(prompt, Encode)
    return prompt


def param(*messages: Any, **fields: Any) -> str | None:
    with pytest.raises(ApiError) as caught:
        chat(*messages, **fields)
    assert caught.value.status == 400
    return caught.value.param


def test_tools_reach_the_template_as_they_are_written() -> None:
    request = chat(tools=[WEATHER], tool_choice="auto", parallel_tool_calls=False)
    assert orjson.loads(encode(request).tools) == [WEATHER]
    assert request.tools is not None and request.tools.one_call and not request.tools.must
    assert request.tools.parameters["weather"]["properties"] == {"city": {"type": "string"}}


def test_a_call_may_be_asked_for() -> None:
    other = {"type": "function", "function": {"name": "time"}}
    required = chat(tools=[WEATHER, other], tool_choice="required").tools
    assert required is not None and (required.must, required.one_call) == (("weather", "time"), False)
    choice = {"type": "function", "function": {"name": "time"}}
    named = chat(tools=[WEATHER, other], tool_choice=choice).tools
    assert named is not None and (named.must, named.one_call) == (("time",), True)
    # It says nothing of arguments: it has none.
    assert named.parameters["time"] == {"type": "object", "properties": {}, "additionalProperties": False}


def test_a_choice_may_be_among_some_of_the_tools() -> None:
    other = {"type": "function", "function": {"name": "time"}}
    some = [{"type": "function", "function": {"name": "time"}}]

    def asked(mode: str, tools: Any = some) -> Any:
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}

    required = chat(tools=[WEATHER, other], tool_choice=asked("required"))
    assert required.tools is not None and (required.tools.must, required.tools.one_call) == (("time",), False)
    # The model is told of no others.
    assert orjson.loads(encode(required).tools) == [other]
    free = chat(tools=[WEATHER, other], tool_choice=asked("auto")).tools
    assert free is not None and (free.must, list(free.parameters)) == ((), ["time"])
    assert chat(tools=[other], tool_choice=asked("auto", [])).tools is None
    where = "tool_choice.allowed_tools"
    assert param(tools=[other], tool_choice=asked("never")) == f"{where}.mode"
    assert param(tools=[WEATHER], tool_choice=asked("auto")) == f"{where}.tools[0].function.name"
    assert param(tools=[WEATHER], tool_choice={"type": "allowed_tools"}) == where
    assert param(tools=[WEATHER], tool_choice=asked("required", [])) == "tool_choice"


def test_strict_is_a_word_to_the_server_and_not_to_the_model() -> None:
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
    assert encode(chat(tools=[strict])).tools == encode(chat(tools=[WEATHER])).tools
    for tools, names in (([strict], {"weather"}), ([WEATHER], set())):
        told = chat(tools=tools).tools
        assert told is not None and told.strict == names


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tools": [WEATHER], "tool_choice": "none"}])
def test_without_tools_to_call_the_template_gets_none(fields: Any) -> None:
    request = chat(**fields)
    assert request.tools is None and encode(request).tools == ""


def test_turns_of_tools_reach_the_template() -> None:
    calling = {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Hm."}
    result = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "sunny"}]}
    turns = encode(chat(calling, result)).turns
    assert turns is not None and turns[1:] == [
        ChatTurn(
            role="assistant",
            content=None,
            tool_calls=[ToolCall(id="call_1", name="weather", arguments='{"city": "Bonn"}')],
            reasoning="Hm.",
        ),
        ChatTurn(role="tool", content="sunny", tool_call_id="call_1"),
    ]


@pytest.mark.parametrize("arguments", [{"city": "Bonn"}, "", None])
def test_arguments_may_also_be_an_object_or_nothing(arguments: Any) -> None:
    call = {"function": {"name": "weather", "arguments": arguments}}
    turns = encode(chat({"role": "assistant", "tool_calls": [call]})).turns
    assert turns is not None
    assert orjson.loads(turns[1].tool_calls[0].arguments) == (arguments or {})


def function(**fields: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "f", **fields}}]


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [WEATHER] * (MAX_TOOLS + 1)}, "tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [WEATHER, {"type": "custom", "custom": {"name": "f"}}]}, "tools[1].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{**WEATHER, "cache_control": 1}]}, "tools[0].cache_control"),
        ({"tools": function(name="a b")}, "tools[0].function.name"),
        ({"tools": function(parameters=[])}, "tools[0].function.parameters"),
        ({"tools": function(strict="yes")}, "tools[0].function.strict"),
        ({"tools": function(description=5)}, "tools[0].function.description"),
        ({"tools": function(returns={})}, "tools[0].function.returns"),
        ({"tools": function(parameters=DEEP)}, "tools"),
        ({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": 5}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [WEATHER], "response_format": {"type": "nothing"}}, "response_format.type"),
        ({"tools": [WEATHER], "response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
         "response_format"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}},
         "tool_choice.function.name"),
        ({"tools": [WEATHER], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"include_reasoning": 5}, "include_reasoning"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {f"a{n}": 1 for n in range(65)}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"bos_token": "<s>"}}, "chat_template_kwargs.bos_token"),
        ({"chat_template_kwargs": DEEP}, "chat_template_kwargs"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_field_is_named(fields: dict[str, Any], where: str) -> None:
    assert param(**fields) == where


def calling(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "f", **fields}}]}


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ({"role": "function", "name": "f", "content": "3"}, "role"),
        ({"role": "assistant", "content": None, "function_call": {"name": "f"}}, "function_call"),
        ({"role": "assistant", "content": None}, "content"),
        ({"role": "assistant", "tool_calls": []}, "content"),
        ({"role": "assistant", "tool_calls": {}}, "tool_calls"),
        ({"role": "assistant", "tool_calls": [CALL] * (MAX_CALLS + 1)}, "tool_calls"),
        ({"role": "assistant", "tool_calls": [{"type": "function"}]}, "tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{**CALL, "id": 5}]}, "tool_calls[0].id"),
        ({"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}, "tool_calls[0].type"),
        (calling(name=None), "tool_calls[0].function.name"),
        (calling(arguments="{"), "tool_calls[0].function.arguments"),
        (calling(arguments="[]"), "tool_calls[0].function.arguments"),
        (calling(arguments=5), "tool_calls[0].function.arguments"),
        (calling(arguments='{"a":' * 400 + "1" + "}" * 400), "tool_calls[0].function.arguments"),
        (calling(output="x"), "tool_calls[0].function.output"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "tool_calls"),
        ({"role": "user", "content": "x", "tool_call_id": "1"}, "tool_call_id"),
        ({"role": "tool", "tool_call_id": "1"}, "content"),
        ({"role": "tool", "tool_call_id": 5, "content": "x"}, "tool_call_id"),
        ({"role": "assistant", "content": "x", "reasoning_content": 5}, "reasoning_content"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_message_is_named(message: dict[str, Any], where: str) -> None:
    assert param(message) == f"messages[1].{where}"


def test_variables_of_the_template_are_passed_on() -> None:
    request = chat(chat_template_kwargs={"enable_thinking": False})
    assert encode(request).template_kwargs == '{"enable_thinking":false}'


def test_tokenize_takes_the_same_fields() -> None:
    body = {"messages": [USER], "tools": [WEATHER], "chat_template_kwargs": {"a": 1}, "add_generation_prompt": False}
    _, message = parse_tokenize(body, RequestLimits())
    asked = encode(chat(tools=[WEATHER], chat_template_kwargs={"a": 1}))
    assert (message.turns, message.tools, message.template_kwargs) == (asked.turns, asked.tools, asked.template_kwargs)
    assert not message.add_generation_prompt


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        ({}, {}),
        ({"reasoning_effort": None, "chat_template_kwargs": {}}, {}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        # What the request says of a variable itself counts.
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False, "a": 1}},
         {"reasoning_effort": "low", "enable_thinking": False, "a": 1}),
    ],
)  # fmt: skip
def test_the_effort_is_for_the_template(fields: dict[str, Any], kwargs: dict[str, Any]) -> None:
    assert orjson.loads(encode(chat(**fields)).template_kwargs or "{}") == kwargs
