"""Mutated HTTP bodies: whatever comes, the answer is never a 500 and the door goes on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import aiohttp
import orjson
import pytest
from fake_mesh import FakeMesh, says
from mutated_bodies import RESPONSES, SEEDS, mutated

from services.api.settings import ROWS

# How the last event of a stream begins, beside [DONE].
ENDS = (b"event: response.completed\n", b"event: response.incomplete\n", b"event: message_stop\n")


async def bombard(
    mesh: FakeMesh, http: aiohttp.ClientSession, count: int, seed: int, seeds: Sequence[tuple[str, Any]] = SEEDS
) -> dict[int, int]:
    draw = random.Random(seed)
    statuses: dict[int, int] = {}

    async def worker(share: int) -> None:
        for _ in range(share):
            path, body = draw.choice(seeds)
            data = mutated(draw, body)
            headers = {"Content-Type": "application/json"}
            async with http.post(mesh.url + path, data=data, headers=headers) as response:
                answer = await response.read()
                statuses[response.status] = statuses.get(response.status, 0) + 1
                # Mutations that repeat each other can make a body too large: that one, and only that, is a 413.
                too_large = len(data) > ROWS["max_body_bytes"].default
                expected = (413,) if too_large else (200, 400, 404)
                assert response.status in expected, (response.status, data[:5000], answer)
                of_messages = path.startswith("/v1/messages")
                if response.content_type == "text/event-stream":
                    last = answer.rpartition(b"\n\n")[0].rpartition(b"\n\n")[2]
                    assert last.startswith((b"data: [DONE]", *ENDS)), (data, answer)
                elif response.status != 200:
                    told = {"message", "type"} if of_messages else {"message", "type", "param", "code"}
                    assert set(orjson.loads(answer)["error"]) == told

    await asyncio.gather(*(worker(count // 20) for _ in range(20)))
    return statuses


async def test_two_thousand_mutated_bodies(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says('<think>hello</think><tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'))
    door = await mesh.start_door(reasoning_parser="qwen3")
    statuses = await bombard(mesh, http, 2000, seed=1)
    assert statuses[200] > 10 and statuses[400] > 100
    assert door.load() == 0


async def test_two_thousand_mutated_bodies_of_messages(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says('<think>hello</think><tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'))
    door = await mesh.start_door(reasoning_parser="qwen3")
    seeds = [each for each in SEEDS if each[0].startswith("/v1/messages")]
    statuses = await bombard(mesh, http, 2000, seed=4, seeds=seeds)
    assert statuses[200] > 10 and statuses[400] > 100
    assert door.load() == 0


async def test_two_thousand_mutated_bodies_of_responses(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says('<think>hello</think><tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'))
    door = await mesh.start_door(reasoning_parser="qwen3")
    statuses = await bombard(mesh, http, 2000, seed=4, seeds=RESPONSES)
    assert statuses[200] > 100 and statuses[400] > 100
    assert door.load() == 0


@pytest.mark.slow
async def test_twenty_thousand_mutated_bodies(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says('<think>hello</think><tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'))
    door = await mesh.start_door(reasoning_parser="qwen3")
    await bombard(mesh, http, 20_000, seed=2, seeds=[*SEEDS, *RESPONSES])
    assert door.load() == 0


REQUEST = (
    b"POST /v1/completions?x=1 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 27\r\n\r\n"
    b'{"model":"tiny","prompt":1}'
)
PIECES = [b"\r\n", b"\n", b"\x00", b"\xff", b" ", b":", b"%", b"%zz", b"../", b"HTTP/9.9", b"Expect: x\r\n"]
PIECES += [b"Content-Length: 99\r\n", b"Transfer-Encoding: chunked\r\n", b"Upgrade: websocket\r\n", b"A" * 9000]
METHODS = [b"GET", b"PUT", b"CONNECT", b"HEAD", b"OPTIONS", b"PRI"]


async def test_three_hundred_mutated_requests(mesh: FakeMesh) -> None:
    await mesh.start_target(says("hello the fox"))
    door = await mesh.start_door(body_timeout=0.3)
    draw = random.Random(3)

    async def send() -> None:
        request = bytearray(REQUEST)
        if draw.random() < 0.2:
            request[:4] = draw.choice(METHODS)
        for _ in range(draw.choice([1, 2, 5])):
            at = draw.randrange(len(request))
            request[at : at + draw.choice([0, 1, 5])] = draw.choice(PIECES)
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(bytes(request))
        answer = await asyncio.wait_for(reader.read(100), 10)
        assert b" 500 " not in answer.split(b"\r\n")[0], (bytes(request), answer)
        writer.close()

    for _ in range(15):
        await asyncio.gather(*(send() for _ in range(20)))
    async with aiohttp.ClientSession() as http, http.get(mesh.url + "/health/ready") as response:
        assert response.status == 200
