from __future__ import annotations

from typing import Any

import orjson
import pytest

from services.api.messages import Encode
from services.streamer.agents.grammars import json_schema
from services.streamer.messages.request import NOT_SERVED, parse_count, parse_messages
from services.streamer.openai.errors import ApiError
from services.streamer.openai.request import Request, RequestLimits, answer_length
from services.streamer.openai.tools import MAX_TOOLS

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "of a city", "input_schema": SCHEMA, "cache_control": {}}
TIME = {"name": "time", "input_schema": {"type": "object"}, "type": "custom", "strict": True}
DEEP: Any = {}
for _ in range(1000):
    DEEP = {"a": DEEP}
MINIMAL: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}


def asked(**fields: Any) -> Request:
    return parse_messages({**MINIMAL, **fields}, RequestLimits())


def prompt(request: Request) -> Encode:
    (told,) = request.prompts
    assert isinstance(told, Encode)
    return told


def test_the_fields_of_chats_are_read_as_in_chats() -> None:
    request = asked(
        temperature=0.5, top_p=0.9, top_k=3, stream=True, stop_sequences=["a", "b", "a"], seed=7, priority=1,
        cache_salt="s", prompt_cache_key="k", speculation={"method": "ngram", "namespace": "n"},
        metadata={"user_id": "x"}, cache_control={"type": "ephemeral"},
    )  # fmt: skip
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.logprobs) == (0.5, 0.9, 3, -1)
    assert (request.stream, request.stops, request.seed, request.priority) == (True, ("a", "b"), 7, 1)
    assert (request.cache_salt, request.session, request.namespace) == ("s", "k", "n")
    assert (request.speculation.method, request.chat, request.n) == ("ngram", True, 1)
    assert (request.max_tokens, request.tools, request.grammar_field) == (5, None, "")


def test_an_answer_may_be_longer_than_the_context_has_room_for() -> None:
    request = asked(max_tokens=32000)
    assert answer_length(request, prompt_tokens=10, max_context=100) == 90
    assert answer_length(asked(max_tokens=20), prompt_tokens=10, max_context=100) == 20
    with pytest.raises(ApiError) as caught:
        answer_length(request, prompt_tokens=100, max_context=100)
    assert caught.value.param == "messages"


def test_tools_are_told_in_the_form_that_templates_know() -> None:
    request = asked(tools=[WEATHER, TIME])
    assert orjson.loads(prompt(request).tools) == [
        {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}},
    ]
    assert request.tools is not None and request.tools.parameters == {"weather": SCHEMA, "time": {"type": "object"}}


@pytest.mark.parametrize(
    ("choice", "must", "one_call"),
    [
        (None, (), False),
        ({"type": "auto"}, (), False),
        ({"type": "auto", "disable_parallel_tool_use": True}, (), True),
        ({"type": "any"}, ("weather", "time"), False),
        ({"type": "any", "disable_parallel_tool_use": True}, ("weather", "time"), True),
        ({"type": "tool", "name": "time"}, ("time",), True),
    ],
)
def test_a_choice_says_which_tools_must_be_called(choice: Any, must: tuple[str, ...], one_call: bool) -> None:
    tools = asked(tools=[WEATHER, TIME], tool_choice=choice).tools
    assert tools is not None and (tools.must, tools.one_call) == (must, one_call)


@pytest.mark.parametrize(
    "fields", [{"tools": []}, {"tools": [WEATHER], "tool_choice": {"type": "none"}}, {"tool_choice": {"type": "auto"}}]
)
def test_without_tools_to_call_the_model_is_told_of_none(fields: Any) -> None:
    request = asked(**fields)
    assert request.tools is None and prompt(request).tools == ""


@pytest.mark.parametrize(
    ("thinking", "kwargs", "told"),
    [
        (None, {}, True),
        ({"type": "adaptive"}, {}, True),
        ({"type": "adaptive", "display": "omitted"}, {}, False),
        ({"type": "enabled", "budget_tokens": 1024}, {"enable_thinking": True, "thinking": True}, True),
        ({"type": "enabled", "budget_tokens": 1, "display": "omitted"},
         {"enable_thinking": True, "thinking": True}, False),
        ({"type": "disabled"}, {"enable_thinking": False, "thinking": False}, False),
    ],
)  # fmt: skip
def test_thinking_is_said_to_the_template(thinking: Any, kwargs: dict[str, bool], told: bool) -> None:
    request = asked(thinking=thinking)
    assert orjson.loads(prompt(request).template_kwargs or "{}") == kwargs
    assert request.include_reasoning is told


def test_a_budget_for_thinking_is_that_of_chats() -> None:
    assert asked(thinking={"type": "enabled", "budget_tokens": 99}).thinking_token_budget == 99
    assert asked().thinking_token_budget == -1


def test_an_effort_is_said_to_the_template() -> None:
    assert orjson.loads(prompt(asked(output_config={"effort": "low"})).template_kwargs) == {"reasoning_effort": "low"}


def test_an_answer_may_be_held_to_a_schema() -> None:
    request = asked(output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    assert request.sampling.grammar == json_schema(SCHEMA)
    assert request.grammar_field == "output_config.format"
    beside = asked(output_config={"format": {"type": "json_schema", "schema": SCHEMA}}, tools=[WEATHER, TIME])
    assert beside.grammar_field and beside.tools is not None and beside.tools.strict == {"time"}


def test_what_is_counted_is_what_is_asked() -> None:
    fields: dict[str, Any] = {
        "system": "brief", "tools": [WEATHER], "tool_choice": {"type": "any"}, "thinking": {"type": "disabled"},
        "output_config": {"effort": "high"}, "cache_control": {}, "speed": "standard",
    }  # fmt: skip
    counted = {name: value for name, value in {**MINIMAL, **fields}.items() if name != "max_tokens"}
    assert parse_count(counted, RequestLimits()) == ("m", prompt(asked(**fields)))


@pytest.mark.parametrize(("name", "values"), NOT_SERVED.items())
def test_what_asks_for_nothing_is_taken(name: str, values: tuple[Any, ...]) -> None:
    for value in (None, *values):
        asked(**{name: value})
    with pytest.raises(ApiError) as caught:
        asked(**{name: "x"})
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")


def form(**fields: Any) -> dict[str, Any]:
    return {"format": {"type": "json_schema", "schema": SCHEMA, **fields}}


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"messages": None}, "messages"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"stream": 1}, "stream"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["a", 5]}, "stop_sequences[1]"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
        ({"speculation": {"method": 5}}, "speculation.method"),
        ({"metadata": {"temperature": 1}}, "metadata.temperature"),
        ({"cache_control": "x"}, "cache_control"),
        ({"n": 2}, "n"),
        ({"stop": ["a"]}, "stop"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"thinking": "on"}, "thinking"),
        ({"thinking": {}}, "thinking.type"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "disabled", "budget_tokens": 5}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "disabled", "display": "omitted"}}, "thinking.display"),
        ({"thinking": {"type": "adaptive", "display": "all"}}, "thinking.display"),
        ({"output_config": []}, "output_config"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"task_budget": {}}}, "output_config.task_budget"),
        ({"output_config": {"format": "json"}}, "output_config.format"),
        ({"output_config": form(type="json_object")}, "output_config.format.type"),
        ({"output_config": form(schema=None)}, "output_config.format.schema"),
        ({"output_config": form(schema=[])}, "output_config.format.schema"),
        ({"output_config": form(schema=DEEP)}, "output_config.format.schema"),
        ({"output_config": form(schema={"const": "x" * 140_000})}, "output_config.format.schema"),
        ({"output_config": form(name="x")}, "output_config.format.name"),
        ({"tools": {}}, "tools"),
        ({"tools": [WEATHER] * (MAX_TOOLS + 1)}, "tools"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [WEATHER, {"type": "web_search_20250305", "name": "web_search"}]}, "tools[1].type"),
        ({"tools": [{**WEATHER, "name": None}]}, "tools[0].name"),
        ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{**WEATHER, "description": 5}]}, "tools[0].description"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{**WEATHER, "input_schema": True}]}, "tools[0].input_schema"),
        ({"tools": [{**WEATHER, "input_schema": DEEP}]}, "tools"),
        ({"tools": [{**WEATHER, "strict": 1}]}, "tools[0].strict"),
        ({"tools": [{**WEATHER, "cache_control": 1}]}, "tools[0].cache_control"),
        ({"tools": [{**WEATHER, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{**WEATHER, "parameters": {}}]}, "tools[0].parameters"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {}}, "tool_choice.type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "any", "name": "weather"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}},
         "tool_choice.disable_parallel_tool_use"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_field_is_named(fields: dict[str, Any], where: str) -> None:
    with pytest.raises(ApiError) as caught:
        asked(**fields)
    assert (caught.value.status, caught.value.param) == (400, where) and where in caught.value.message
