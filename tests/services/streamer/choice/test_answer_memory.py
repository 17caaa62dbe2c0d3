"""Answers that are kept until they are whole share a memory."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from fake_mesh import MODEL, FakeMesh, FakeTarget, finished, says, tokens, until

from mesh.stream import StreamWriter
from services.api.messages import Generate
from services.streamer.choice.answer_memory import FREE, AnswerMemory
from services.streamer.openai.errors import ApiError

# Some 190 KB for each choice.
LARGE = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200, "logprobs": True, "top_logprobs": 20}
SMALL = {"messages": [{"role": "user", "content": "small"}], "max_tokens": 200}


def test_each_answer_has_a_little_for_itself_and_gives_back_what_it_took() -> None:
    memory = AnswerMemory(100)
    first, second = memory.answer(), memory.answer()
    first.grow(FREE + 60)
    assert memory.held == 60
    second.grow(FREE)
    second.grow(40)
    with pytest.raises(ApiError) as full:
        first.grow(1)
    assert (full.value.status, full.value.retry_after) == (429, 1)
    with pytest.raises(ApiError) as larger:
        first.grow(41)
    assert (larger.value.status, larger.value.code) == (413, "answer_too_large")
    first.close()
    assert memory.held == 40
    second.grow(60)
    second.close()
    assert memory.held == 0


async def test_what_has_no_room_is_refused_and_a_stream_or_a_small_answer_is_not(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    gate, held = asyncio.Event(), 0

    async def script(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        nonlocal held
        if message.sampling.logprobs < 0 or gate.is_set():
            await says([104] * 200, 20)(target, message, out)
            return
        for seq in range(0, 200, 20):
            await out.send(tokens(message, seq, [104] * 20))
        held += 1
        await gate.wait()
        await out.send(finished(message, 200, "length"))

    await mesh.start_target(script)
    door = await mesh.start_door(answer_memory_mb=1)

    async def ask(**fields: Any) -> tuple[int, Any]:
        body = {"model": MODEL, **LARGE, **fields}
        async with http.post(mesh.url + "/v1/chat/completions", json=body) as response:
            return response.status, await (response.text() if fields.get("stream") else response.json())

    first = asyncio.create_task(ask(n=4))
    await until(lambda: held == 4)
    second = asyncio.create_task(ask(n=4))
    status, body = await second
    assert (status, body["error"]["code"]) == (429, "too_many_requests")
    async with http.post(mesh.url + "/v1/chat/completions", json={"model": MODEL, **SMALL}) as response:
        assert response.status == 200
    gate.set()
    status, body = await first
    assert status == 200 and [len(each["logprobs"]["content"]) for each in body["choices"]] == [200] * 4
    await until(lambda: door.load() == 0)
    # There is room again, and for no answer more than there is in all.
    assert (await ask(n=4))[0] == 200
    status, body = await ask(n=8)
    assert (status, body["error"]["code"]) == (413, "answer_too_large")
    status, text = await ask(n=8, stream=True)
    assert status == 200 and text.endswith("data: [DONE]\n\n")
