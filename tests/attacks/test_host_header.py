"""A page of another site reaches a server without keys through the browser of someone who can.

DNS rebinding: the page's own name is made to point at 127.0.0.1, and what it asks then counts as same origin. The
browser still sends that name as Host. A request from another origin is told by its header Origin.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest
from fake_mesh import MODEL, FakeMesh, says
from prometheus_client import CollectorRegistry

from services.runtime.health_server import HealthServer

BODY = orjson.dumps({"model": MODEL, "prompt": "hi", "max_tokens": 5})
KILL = b'{"role": "proposer"}'


@pytest.fixture
async def mesh() -> AsyncIterator[FakeMesh]:
    mesh = FakeMesh()
    await mesh.start_tokenizer()
    await mesh.start_target(says("hello"))
    yield mesh
    await mesh.close()


async def status(port: int, line: str, host: str | None, *headers: str, body: bytes = b"") -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"{line} HTTP/1.1", *([f"Host: {host}"] if host is not None else []), *headers, "Connection: close"]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return int(answer.split()[1])


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example"])
async def test_a_rebound_name_reaches_nothing(mesh: FakeMesh, host: str) -> None:
    door = await mesh.start_door(demo=True)
    assert await status(door.port, "POST /v1/completions", host, body=BODY) == 421
    assert await status(door.port, "POST /v1/mesh/kill", host, body=KILL) == 421
    assert await status(door.port, "GET /v1/mesh", host) == 421
    assert await status(door.port, "GET /", host) == 421


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9100"])
async def test_a_rebound_name_reads_no_metrics(host: str) -> None:
    server = HealthServer(CollectorRegistry(), list)
    await server.start("127.0.0.1", 0)
    try:
        assert await status(server.port, "GET /metrics", host) == 421
        # As Prometheus in compose asks.
        assert await status(server.port, "GET /metrics", "streamer:9100") == 200
    finally:
        await server.stop()


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost:3000", "null", "http://127.0.0.1"])
async def test_another_origin_changes_nothing(mesh: FakeMesh, origin: str) -> None:
    door = await mesh.start_door(demo=True)
    host = f"127.0.0.1:{door.port}"
    assert await status(door.port, "POST /v1/mesh/kill", host, f"Origin: {origin}", body=KILL) == 403
    assert await status(door.port, "DELETE /v1/corpora/a", host, f"Origin: {origin}") == 403
    own = f"Origin: http://{host}"
    assert await status(door.port, "POST /v1/completions", host, own, body=BODY) == 200


async def test_with_keys_the_key_alone_decides(mesh: FakeMesh) -> None:
    door = await mesh.start_door(api_keys="one")
    key = "Authorization: Bearer one"
    other = "Origin: https://chat.example"
    assert await status(door.port, "POST /v1/completions", "api.example", key, other, body=BODY) == 200
    assert await status(door.port, "POST /v1/completions", "api.example", body=BODY) == 401
