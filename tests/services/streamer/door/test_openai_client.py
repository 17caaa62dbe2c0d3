"""The openai package as a client: strict validation, and its streaming parser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from fake_mesh import MODEL, FakeMesh, says
from openai.types.chat import ChatCompletionPredictionContentParam

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client(mesh: FakeMesh) -> AsyncIterator[openai.AsyncOpenAI]:
    await mesh.start_target(says("hello the fox"))
    await mesh.start_door(api_keys="secret")
    async with openai.AsyncOpenAI(
        base_url=mesh.url + "/v1", api_key="secret", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


async def test_a_chat_parses_strictly(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2, n=2, seed=1
    )
    assert [choice.message.content for choice in answer.choices] == ["hello the fox"] * 2
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert [len(each.top_logprobs) for each in logprobs.content] == [2, 2, 2]


async def test_a_streamed_chat_parses_strictly(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        stream=True,
        logprobs=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "hello the fox"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 4


async def test_a_chat_with_a_prediction_parses_strictly(mesh: FakeMesh) -> None:
    await mesh.start_target(says("hello the fox", group=3, source="prediction"))
    await mesh.start_door()
    prediction: ChatCompletionPredictionContentParam = {"type": "content", "content": "hello the fox"}
    extra = {"speculation": {"learn": False}, "return_provenance": True, "return_speculate_metrics": True}
    async with openai.AsyncOpenAI(
        base_url=mesh.url + "/v1", api_key="any", max_retries=0, _strict_response_validation=True
    ) as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, prediction=prediction, extra_body=extra
        )
        assert answer.usage is not None and answer.usage.completion_tokens_details is not None
        details = answer.usage.completion_tokens_details
        assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (2, 1)
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, prediction=prediction, extra_body=extra, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens_details == details
    parts: list[Any] = [run for chunk in chunks for choice in chunk.choices for run in getattr(choice, "runs", [])]
    assert [run["source"] for run in parts] == ["prediction"]


async def test_a_completion_parses_strictly(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt="hi", logprobs=2, max_tokens=50)
    assert answer.choices[0].text == "hello the fox"
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.text_offset == [0, 5, 9]


async def test_a_streamed_completion_parses(client: openai.AsyncOpenAI) -> None:
    """Not strictly: the client's types have no null finish_reason here, which OpenAI itself sends."""
    loose = client.with_options(_extra_kwargs={"_strict_response_validation": False})
    stream = await loose.completions.create(
        model=MODEL, prompt="hi", stream=True, max_tokens=50, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == "hello the fox"
    assert chunks[-1].usage is not None


async def test_models_parse_strictly(client: openai.AsyncOpenAI) -> None:
    models = await client.models.list()
    assert [model.id for model in models.data] == [MODEL]
    assert (await client.models.retrieve(MODEL)).owned_by == "specmesh"


async def test_errors_are_the_exceptions_clients_catch(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=9)
    assert (bad.value.param, bad.value.code) == ("temperature", "out_of_range")
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()
