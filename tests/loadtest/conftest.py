from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from scripted_server import ScriptedServer


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer()
    await scripted.start()
    yield scripted
    await scripted.stop()


@pytest.fixture
async def raw_server() -> AsyncIterator[Callable[[bytes | None], Awaitable[str]]]:
    """Starts servers that read a request and answer with given bytes, then close; None: reset at once."""
    servers: list[asyncio.Server] = []

    async def start(reply: bytes | None) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            if reply is None:
                writer.transport.abort()
                return
            writer.write(reply)
            writer.close()

        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        servers.append(listening)
        return f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"

    yield start
    for listening in servers:
        listening.close()
