"""Tools through the whole mesh with the default model: calls that are asked for, with drafts and without, whole and
streamed, and their results in the next request."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from running_mesh import RunningMesh
from sse_client import MODEL

pytestmark = pytest.mark.model

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "unit", "days"],
            "additionalProperties": False,
        },
    },
}
TIME: Any = {"type": "function", "function": {"name": "get_time", "parameters": {
    "type": "object", "properties": {"zone": {"enum": ["CET", "UTC"]}}, "required": ["zone"],
    "additionalProperties": False}}}  # fmt: skip
ASKED: Any = [{"role": "user", "content": "How is the weather in Paris for the next 3 days? Use a tool."}]
NAMED: Any = {"type": "function", "function": {"name": "get_time"}}
OFF = {"speculation": {"off": True}}


@pytest.fixture(scope="module")
def client(real_mesh: RunningMesh) -> openai.OpenAI:
    return openai.OpenAI(base_url=real_mesh.url + "/v1", api_key="none", max_retries=5)


def calls_of(message: Any) -> list[tuple[str, str]]:
    return [(each.function.name, each.function.arguments) for each in message.tool_calls or ()]


def answer(client: openai.OpenAI, **fields: Any) -> Any:
    given = {"messages": ASKED, "tools": [WEATHER, TIME], "max_tokens": 120, "temperature": 0, **fields}
    return client.chat.completions.create(model=MODEL, **given)


SAMPLINGS = [
    pytest.param({"temperature": 0}, id="greedy", marks=pytest.mark.slow),
    pytest.param({"temperature": 0.9, "seed": 7}, id="seeded"),
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("choice", ["required", NAMED, "auto"], ids=["required", "named", "auto"])
def test_drafts_change_no_call(client: openai.OpenAI, choice: Any, sampling: dict[str, Any]) -> None:
    told = []
    for extra in (OFF, {}, {"speculation": {"method": "suffix"}}):
        fields = {"tool_choice": choice, "parallel_tool_calls": False, "n": 2, "extra_body": extra, **sampling}
        choices = answer(client, **fields).choices
        told.append([(each.message.content, calls_of(each.message), each.finish_reason) for each in choices])
    assert told[0] == told[1] == told[2]
    for content, calls, reason in told[0]:
        if choice != "auto":
            assert (content, reason, len(calls)) == (None, "tool_calls", 1)
            name, arguments = calls[0]
            check_arguments(name, arguments)
            assert choice == "required" or name == "get_time"


FORM: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": {
    "type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"], "additionalProperties": False}}}  # fmt: skip
STRICT: Any = [{"type": "function", "function": {**each["function"], "strict": True}} for each in (WEATHER, TIME)]
CALLING: Any = [*ASKED, {"role": "assistant", "content": None, "tool_calls": [
    {"id": "a", "type": "function", "function": {"name": "get_time", "arguments": '{"zone": "CET"}'}}]},
    {"role": "tool", "tool_call_id": "a", "content": '{"time": "12:00"}'}] * 2 + ASKED  # fmt: skip


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("messages", [ASKED, CALLING, [{"role": "user", "content": "Who is Ann? Answer in JSON."}]])
def test_drafts_change_neither_calls_nor_the_form_beside_them(
    client: openai.OpenAI, messages: Any, sampling: dict[str, Any]
) -> None:
    told = []
    for extra in (OFF, {}, {"speculation": {"method": "suffix"}}):
        fields = {"response_format": FORM, "n": 3, "parallel_tool_calls": False, "extra_body": extra, **sampling}
        choices = answer(client, messages=messages, **fields).choices
        told.append([(each.message.content, calls_of(each.message), each.finish_reason) for each in choices])
    assert told[0] == told[1] == told[2]
    for content, calls, reason in told[0]:
        assert bool(content) != bool(calls)
        for call in calls:
            assert reason == "length" or not check_arguments(*call)
        if content and reason == "stop":
            assert set(json.loads(content)) == {"name", "age"}


def test_with_tool_choice_none_the_form_is_alone(client: openai.OpenAI) -> None:
    (choice,) = answer(client, messages=CALLING, response_format=FORM, tool_choice="none").choices
    assert not choice.message.tool_calls and choice.message.content.startswith("{")


def call_for(zone: str) -> list[Any]:
    function = {"name": "get_time", "arguments": json.dumps({"zone": zone})}
    call = {"id": "a", "type": "function", "function": function}
    return [{"role": "user", "content": f"Time in {zone}?"}, {"role": "assistant", "tool_calls": [call]}]


# Turns from which the model learns to call, and to take the zone from the question.
OFTEN: list[Any] = [*call_for("UTC"), *call_for("CET"), *call_for("EST"), {"role": "user", "content": "Time in PST?"}]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_strict_tool_is_called_by_its_schema_whatever_is_drafted(
    client: openai.OpenAI, sampling: dict[str, Any]
) -> None:
    fields = {"messages": OFTEN, "n": 3, **sampling}
    free = [call for each in answer(client, **fields).choices for call in calls_of(each.message)]
    assert ("get_time", '{"zone": "PST"}') in free
    told = []
    for extra in (OFF, {}, {"speculation": {"method": "suffix"}}):
        choices = answer(client, tools=STRICT, extra_body=extra, **fields).choices
        told.append([(each.message.content, calls_of(each.message), each.finish_reason) for each in choices])
    assert told[0] == told[1] == told[2]
    calls = [call for _, calls, _ in told[0] for call in calls]
    assert calls
    for call in calls:
        check_arguments(*call)


def test_a_rejected_draft_changes_no_call_of_an_open_object(client: openai.OpenAI) -> None:
    """Here a draft has a list where the text goes on with an object. Nothing is drafted from the other answer."""
    keep: Any = {"type": "function", "function": {"name": "person", "description": "d", "parameters": {
        "properties": {
            "name": {"maxLength": 12, "title": "Name", "type": "string"},
            "age": {"maximum": 99, "minimum": 0, "title": "Age", "type": "integer"}},
        "required": ["name", "age"], "title": "Person", "type": "object"}}}  # fmt: skip
    told = []
    for extra in ({**OFF, "cache_salt": "off"}, {"speculation": {"method": "suffix"}, "cache_salt": "suffix"}):
        fields: dict[str, Any] = {"tool_choice": "required", "n": 2, "temperature": 1, "seed": 4, "max_tokens": 100}
        said = [{"role": "user", "content": "Ann is 12 years old."}]
        told.append([calls_of(each.message) for each in answer(
            client, messages=said, tools=[keep], extra_body=extra, **fields).choices])  # fmt: skip
    assert told[0] == told[1] and all(told[0])


def check_arguments(name: str, text: str) -> None:
    arguments = json.loads(text)
    if name == "get_time":
        assert arguments["zone"] in ("CET", "UTC") and len(arguments) == 1
    else:
        assert set(arguments) == {"city", "unit", "days"} and arguments["unit"] in ("celsius", "fahrenheit")
        assert isinstance(arguments["city"], str) and 1 <= arguments["days"] <= 9


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
    (whole,) = answer(client, **fields).choices
    given = {"messages": ASKED, "tools": [WEATHER, TIME], "max_tokens": 120, "temperature": 0, **fields}
    with client.chat.completions.stream(model=MODEL, **given) as stream:
        (streamed,) = stream.get_final_completion().choices
    assert calls_of(streamed.message) == calls_of(whole.message)
    assert streamed.finish_reason == whole.finish_reason == "tool_calls"


def test_a_result_is_part_of_the_next_request(client: openai.OpenAI) -> None:
    (first,) = answer(client, tool_choice="required", parallel_tool_calls=False).choices
    (call,) = first.message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"sky": "clear", "degrees": 21}'}
    told = answer(client, messages=[*ASKED, first.message.model_dump(), result], max_tokens=24)
    without = answer(client, messages=ASKED, max_tokens=24)
    assert told.usage.prompt_tokens > without.usage.prompt_tokens + 20
    assert told.choices[0].message.content or told.choices[0].message.tool_calls


def test_a_schema_that_no_grammar_holds_names_its_field(client: openai.OpenAI) -> None:
    wrong = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "a": {"type": "string", "pattern": "(?=x)"}}, "required": ["a"]}}}  # fmt: skip
    with pytest.raises(openai.BadRequestError) as refused:
        answer(client, tools=[wrong], tool_choice="required")
    assert refused.value.param == "tools"
    # Nobody is held to it otherwise.
    assert answer(client, tools=[wrong], max_tokens=4).choices
