"""A raw socket to a streamer: what no HTTP client sends, and when."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from fake_mesh import MODEL, FakeMesh

QUICK = {"body_timeout": 0.3, "write_timeout": 0.4}
BODY = orjson.dumps({"model": MODEL, "prompt": "hi", "max_tokens": 5})


def head(length: int, *more: str, target: str = "POST /v1/completions") -> bytes:
    lines = [f"{target} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {length}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


async def connect(mesh: FakeMesh, limit: int = 2**16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    assert mesh.door is not None
    return await asyncio.open_connection("127.0.0.1", mesh.door.port, limit=limit)


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    """One response with a length; the connection may go on."""
    status = int((await reader.readline()).split()[1])
    length = 0
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return status, orjson.loads(await reader.readexactly(length))
