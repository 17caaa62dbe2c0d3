"""Clients that leave at any moment: nothing of them stays. Law 5 for the door."""

from __future__ import annotations

import asyncio
import os
import random

import orjson
import pytest
from fake_mesh import MODEL, FakeMesh, FakeTarget, finished, tokens, until

from mesh.stream import StreamWriter
from services.api.messages import Generate


async def trickles(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
    for seq in range(message.sampling.max_tokens):
        await out.send(tokens(message, seq, [97]))
        await asyncio.sleep(0.001)
    await out.send(finished(message, message.sampling.max_tokens, "length"))


async def visit(port: int, draw: random.Random) -> None:
    """Sends a request, perhaps not all of it, reads a little, perhaps nothing, and goes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    wish = {"model": MODEL, "prompt": "hi", "max_tokens": draw.choice([1, 30]), "stream": draw.random() < 0.7}
    body = orjson.dumps({**wish, "n": draw.choice([1, 1, 3])})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    request = head.encode() + b"\r\n\r\n" + body
    whole = draw.random() < 0.8
    writer.write(request if whole else request[: draw.randrange(len(request))])
    for _ in range(draw.choice([0, 1, 3])) if whole else ():
        await reader.read(100)
    if draw.random() < 0.5:
        writer.transport.abort()
    writer.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def visits(mesh: FakeMesh, count: int, at_once: int) -> None:
    target = await mesh.start_target(trickles)
    door = await mesh.start_door(body_timeout=5.0)
    draw = random.Random(4)
    await visit(door.port, draw)  # what is made once is made
    await until(lambda: door.load() == 0 and target.running == 0 and not door.connections.open)
    files, tasks = open_files(), len(asyncio.all_tasks())
    for _ in range(count // at_once):
        await asyncio.gather(*(visit(door.port, draw) for _ in range(at_once)))
    await until(lambda: door.load() == 0 and target.running == 0 and not door.connections.open, 15)
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
    assert open_files() <= files
    assert len(target.asked) > count / 4


async def test_three_hundred_clients_leave_nothing_behind(mesh: FakeMesh) -> None:
    await visits(mesh, 300, at_once=30)


@pytest.mark.slow
async def test_ten_thousand_clients_leave_nothing_behind(mesh: FakeMesh) -> None:
    await visits(mesh, 10_000, at_once=100)
