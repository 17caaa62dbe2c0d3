"""The openai package as a client of /v1/responses: strict validation, streams, parsing, and a loop of tools."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pydantic
import pytest
from fake_mesh import MODEL, FakeMesh, ids_of, says

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bonn"}}</tool_call>'
WEATHER: Any = {
    "type": "function", "name": "weather", "description": "The weather", "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
                   "additionalProperties": False},
}  # fmt: skip


class Person(pydantic.BaseModel):
    name: str
    age: int


@pytest.fixture
async def client(mesh: FakeMesh) -> AsyncIterator[openai.AsyncOpenAI]:
    await mesh.start_door(api_keys="secret", reasoning_parser="qwen3")
    async with openai.AsyncOpenAI(
        base_url=mesh.url + "/v1", api_key="secret", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


async def test_a_response_parses_strictly(mesh: FakeMesh, client: openai.AsyncOpenAI) -> None:
    await mesh.start_target(says("hello the fox", cached=1))
    told = await client.responses.create(
        model=MODEL, input="hi", instructions="Be short.", max_output_tokens=20, metadata={"a": "b"},
        include=["message.output_text.logprobs"], top_logprobs=2, temperature=0.5, reasoning={"effort": "low"},
    )  # fmt: skip
    assert (told.output_text, told.status, told.model) == ("hello the fox", "completed", MODEL)
    assert (told.instructions, told.metadata, told.temperature) == ("Be short.", {"a": "b"}, 0.5)
    (message,) = told.output
    assert message.type == "message" and message.content[0].type == "output_text"
    logprobs = message.content[0].logprobs
    assert logprobs is not None and [len(each.top_logprobs) for each in logprobs] == [2, 2, 2]
    usage = told.usage
    assert usage is not None and usage.input_tokens_details.cached_tokens == 1
    assert (usage.output_tokens, usage.total_tokens) == (4, usage.input_tokens + 4)


async def test_a_stream_has_the_published_events(mesh: FakeMesh, client: openai.AsyncOpenAI) -> None:
    await mesh.start_target(says(f"<think>hm the fox</think>hello the fox {CALL}", 2))
    stream = await client.responses.create(model=MODEL, input="hi", tools=[WEATHER], stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    once = list(dict.fromkeys(kinds))
    assert once == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.reasoning_text.delta", "response.reasoning_text.done", "response.content_part.done",
        "response.output_item.done", "response.output_text.delta", "response.output_text.done",
        "response.function_call_arguments.delta", "response.function_call_arguments.done", "response.completed",
    ]  # fmt: skip
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 3
    last = events[-1]
    assert last.type == "response.completed"
    assert [item.type for item in last.response.output] == ["reasoning", "message", "function_call"]
    assert last.response.usage is not None and last.response.usage.output_tokens_details.reasoning_tokens > 2


async def test_its_stream_helper_joins_text_and_arguments(mesh: FakeMesh, client: openai.AsyncOpenAI) -> None:
    await mesh.start_target(says(f"hello {CALL}", 3))
    text = arguments = ""
    async with client.responses.stream(model=MODEL, input="hi", tools=[WEATHER]) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
                assert event.snapshot == text
            if event.type == "response.function_call_arguments.delta":
                arguments += event.delta
                assert event.snapshot == arguments
        final = await stream.get_final_response()
    assert (final.output_text, text) == ("hello", "hello")
    call = final.output[1]
    assert call.type == "function_call" and call.arguments == arguments
    assert call.parsed_arguments == {"city": "Bonn"}


async def test_a_structured_answer_is_parsed(mesh: FakeMesh, client: openai.AsyncOpenAI) -> None:
    target = await mesh.start_target(says('{"name": "Ada", "age": 36}', 4))
    told = await client.responses.parse(model=MODEL, input="Who?", text_format=Person)
    assert told.output_parsed == Person(name="Ada", age=36)
    grammars = json.loads(target.asked[0].sampling.grammar)["grammars"]
    (schema,) = [each["json_schema"] for each in grammars if "json_schema" in each]
    assert schema["required"] == ["name", "age"]
    async with client.responses.stream(model=MODEL, input="Who?", text_format=Person) as stream:
        final = await stream.get_final_response()
    assert final.output_parsed == Person(name="Ada", age=36)


@pytest.mark.parametrize("stored", [True, False])
async def test_a_loop_of_tools(mesh: FakeMesh, client: openai.AsyncOpenAI, stored: bool) -> None:
    """With previous_response_id, or with the items of the answer sent back."""
    target = await mesh.start_target(says(CALL, 3))
    first = await client.responses.create(model=MODEL, input="How is Bonn?", tools=[WEATHER], store=stored)
    (call,) = first.output
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Bonn"}
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "the fox"}
    await mesh.stop("worker-1")
    target = await mesh.start_target(says("hello"), "worker-2")
    if stored:
        second = await client.responses.create(
            model=MODEL, input=[result], tools=[WEATHER], previous_response_id=first.id
        )
    else:
        items: Any = [{"role": "user", "content": "How is Bonn?"}, *(each.model_dump() for each in first.output)]
        second = await client.responses.create(model=MODEL, input=[*items, result], tools=[WEATHER])
    assert second.output_text == "hello"
    # What the double of the tokenizer makes of turns; its content is null.
    asked = target.asked[0].token_ids
    assert asked == ids_of("<user>How is Bonn?<assistant>None<tool>the fox")


async def test_a_response_is_retrieved_and_deleted(mesh: FakeMesh, client: openai.AsyncOpenAI) -> None:
    await mesh.start_target(says("hello the fox"))
    told = await client.responses.create(model=MODEL, input="hi")
    assert (await client.responses.retrieve(told.id)).model_dump() == told.model_dump()
    await client.responses.delete(told.id)
    with pytest.raises(openai.NotFoundError) as missing:
        await client.responses.retrieve(told.id)
    assert missing.value.code == "response_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=MODEL, input="hi", previous_response_id=told.id)
    assert (refused.value.param, refused.value.code) == ("previous_response_id", "previous_response_not_found")
