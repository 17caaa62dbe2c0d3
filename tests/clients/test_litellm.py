"""LiteLLM, by both of its names for such servers: forms, tools, streams that are put together again, a loop."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

litellm = pytest.importorskip("litellm")
pydantic = pytest.importorskip("pydantic")

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])]

ASKED: Any = [{"role": "user", "content": "Ann is 12 years old."}]


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=99)


TOOL = {"type": "function", "function": {
    "name": "person", "description": "Keeps a person.", "parameters": Person.model_json_schema()}}  # fmt: skip
FORCED: Any = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}


@pytest.fixture
def asked(server: str, model: str, provider: str) -> dict[str, Any]:
    return {"model": f"{provider}/{model}", "api_base": server, "api_key": "none", "max_tokens": 120,
            "temperature": 0, "num_retries": 0}  # fmt: skip


def test_a_form_is_held(asked: dict[str, Any]) -> None:
    said = litellm.completion(messages=ASKED, response_format=Person, **asked).choices[0]
    assert Person.model_validate_json(said.message.content) and said.finish_reason == "stop"
    schema = {"type": "json_schema", "json_schema": {"name": "p", "schema": Person.model_json_schema()}}
    assert litellm.completion(messages=ASKED, response_format=schema, **asked).choices[0].message == said.message


def test_chunks_are_put_together_again(asked: dict[str, Any]) -> None:
    whole = litellm.completion(messages=ASKED, **FORCED, **asked)
    options = {"include_usage": True}
    chunks = list(litellm.completion(messages=ASKED, stream=True, stream_options=options, **FORCED, **asked))
    built = litellm.stream_chunk_builder(chunks, messages=ASKED)
    (call,), (again,) = (each.choices[0].message.tool_calls for each in (whole, built))
    assert (call.function.name, call.function.arguments) == (again.function.name, again.function.arguments)
    assert Person.model_validate_json(call.function.arguments)
    assert built.choices[0].finish_reason == whole.choices[0].finish_reason == "tool_calls"
    assert built.usage.completion_tokens == whole.usage.completion_tokens

    async def last() -> Any:
        stream = await litellm.acompletion(messages=ASKED, stream=True, **FORCED, **asked)
        return [each async for each in stream][-1]

    assert asyncio.run(last()).choices[0].finish_reason == "tool_calls"


def test_a_task_of_three_calls_ends(asked: dict[str, Any]) -> None:
    messages: list[Any] = list(ASKED)
    for _ in range(3):
        said = litellm.completion(messages=messages, **FORCED, **asked).choices[0].message
        (call,) = said.tool_calls
        assert json.loads(call.function.arguments)
        messages += [said, {"role": "tool", "tool_call_id": call.id, "name": "person", "content": "Kept."}]
    dumped = [each if isinstance(each, dict) else each.model_dump() for each in messages]
    assert litellm.completion(messages=dumped, tools=[TOOL], tool_choice="none", **asked).choices[0].message.content


def test_several_choices_have_log_probabilities(asked: dict[str, Any]) -> None:
    drawn = {**asked, "temperature": 1, "seed": 4, "n": 2, "logprobs": True, "top_logprobs": 2}
    answer = litellm.completion(messages=ASKED, **FORCED, **drawn)
    assert [len(each.logprobs.content) > 8 for each in answer.choices] == [True, True]


def test_errors_have_their_kind(asked: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError, match="context"):
        litellm.completion(messages=[{"role": "user", "content": "word " * 20000}], **asked)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=ASKED, **{**asked, "model": asked["model"].partition("/")[0] + "/gpt-4o"})
