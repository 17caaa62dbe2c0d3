"""openai: parsed answers and tools, streaming helpers, a loop of three tools, choices with log-probabilities."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Literal

import pytest

openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")

pytestmark = pytest.mark.slow

ASKED: Any = [{"role": "user", "content": "Ann is 12 years old and lives in Bonn. Use a tool."}]


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=99)
    likes: list[Literal["red", "blue"]] = pydantic.Field(max_length=2)
    note: str | None = pydantic.Field(max_length=8)


class Weather(pydantic.BaseModel):
    """The weather in a city."""

    city: str = pydantic.Field(max_length=12)
    unit: Literal["celsius", "fahrenheit"]


class Finish(pydantic.BaseModel):
    """Ends the task."""

    done: bool


TOOLS = [openai.pydantic_function_tool(each) for each in (Person, Weather, Finish)]


@pytest.fixture
def client(server: str) -> Any:
    return openai.OpenAI(base_url=server, api_key="none", max_retries=0).chat.completions


def test_an_answer_is_parsed(client: Any, model: str) -> None:
    answer = client.parse(model=model, messages=ASKED, response_format=Person, max_tokens=200, temperature=0)
    assert isinstance(answer.choices[0].message.parsed, Person)
    with pytest.raises(openai.LengthFinishReasonError):
        client.parse(model=model, messages=ASKED, response_format=Person, max_tokens=3)


def test_a_task_of_three_tools_ends(client: Any, model: str) -> None:
    """What `parse` returned goes back as it is."""
    messages, called = list(ASKED), []
    for name in ("Person", "Weather", "Finish"):
        choice = {"type": "function", "function": {"name": name}}
        answer = client.parse(model=model, messages=messages, tools=TOOLS, tool_choice=choice, max_tokens=200)
        (said,) = answer.choices
        (call,) = said.message.tool_calls
        assert said.finish_reason == "tool_calls" and said.message.content is None
        called.append(call.function.parsed_arguments)
        messages += [said.message, {"role": "tool", "tool_call_id": call.id, "content": "Done."}]
    assert [type(each) for each in called] == [Person, Weather, Finish]
    formed = client.parse(model=model, messages=messages, response_format=Finish, max_tokens=50).choices[0].message
    # As dictionaries, too.
    dumped = [each if isinstance(each, dict) else each.model_dump() for each in [*messages, formed]]
    end = client.create(model=model, messages=[*dumped, *ASKED], tools=TOOLS, tool_choice="none", max_tokens=8)
    assert end.choices[0].message.content


def test_a_stream_of_calls_has_its_events(client: Any, model: str) -> None:
    asked = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200, "seed": 3}
    options = {"include_usage": True}
    with client.stream(model=model, messages=ASKED, n=2, logprobs=True, stream_options=options, **asked) as stream:
        events = list(stream)
        whole = stream.get_final_completion()
    counted = Counter(each.type for each in events)
    assert counted["tool_calls.function.arguments.done"] == len(whole.choices) == 2
    assert counted["tool_calls.function.arguments.delta"] >= 2 and counted["logprobs.content.delta"]
    for choice in whole.choices:
        (call,) = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls" and call.function.parsed_arguments is not None
    # The token that ends a text is counted, and has no log-probability.
    assert sum(len(each.logprobs.content) + 1 for each in whole.choices) == whole.usage.completion_tokens
    done = [each for each in events if each.type == "tool_calls.function.arguments.done"]
    assert {each.arguments for each in done} == {
        each.message.tool_calls[0].function.arguments for each in whole.choices
    }


def test_the_chunks_of_a_stream_keep_their_order(client: Any, model: str) -> None:
    asked = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 120, "temperature": 0}
    options = {"include_usage": True}
    *chunks, last = client.create(model=model, messages=ASKED, stream=True, stream_options=options, **asked)
    assert last.usage.completion_tokens and not last.choices and not any(each.usage for each in chunks)
    choices = [each.choices[0] for each in chunks]
    assert [each.delta.role for each in choices] == ["assistant", *[None] * (len(choices) - 1)]
    assert [bool(each.finish_reason) for each in choices] == [False] * (len(choices) - 1) + [True]
    parts = [call for each in choices for call in each.delta.tool_calls or ()]
    # A call is named once, in its first part, and calls follow each other.
    first = [each for place, each in enumerate(parts) if place == 0 or each.index != parts[place - 1].index]
    assert [each.index for each in first] == list(range(len(first)))
    assert [each for each in parts if each.id or each.type or each.function.name] == first
    assert len({each.id for each in first}) == len(first)


def test_a_stream_of_a_form_is_parsed_on_the_way(client: Any, model: str) -> None:
    with client.stream(model=model, messages=ASKED, response_format=Person, max_tokens=200) as stream:
        events = list(stream)
    (done,) = [each for each in events if each.type == "content.done"]
    assert isinstance(done.parsed, Person)
    assert "".join(each.delta for each in events if each.type == "content.delta") == done.content


def test_what_is_asked_of_tools_is_held(client: Any, model: str) -> None:
    def ask(**fields: Any) -> Any:
        return client.create(model=model, messages=ASKED, tools=TOOLS, max_tokens=200, **fields).choices[0]

    assert ask(tool_choice="none", temperature=0).message.tool_calls is None
    assert ask(tool_choice="auto", temperature=0).finish_reason in ("stop", "tool_calls", "length")
    only = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
        {"type": "function", "function": {"name": "Finish"}}]}}  # fmt: skip
    for call in ask(tool_choice=only, parallel_tool_calls=False).message.tool_calls:
        assert call.function.name == "Finish" and set(json.loads(call.function.arguments)) == {"done"}
