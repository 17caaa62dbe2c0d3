"""Sixty clients announce bodies of 4 MB each, send them slowly and never end them: memory stays within its budget."""

from __future__ import annotations

import asyncio

from fake_mesh import FakeMesh, says

from services.api.settings import ROWS

ATTACKERS = 60
BODY = ROWS["max_body_bytes"].default
BUDGET = 64 * 2**20
ASKS = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % BODY
)


async def attack(port: int) -> tuple[bytes, asyncio.StreamWriter]:
    """The status line of the first answer: 100 if the body may come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(ASKS)
    return await asyncio.wait_for(reader.readline(), 10), writer


async def test_bodies_beyond_the_budget_are_refused_before_they_are_read() -> None:
    mesh = FakeMesh()
    try:
        await mesh.start_tokenizer()
        await mesh.start_target(says("hello"))
        door = await mesh.start_door()
        attackers = [await attack(door.port) for _ in range(ATTACKERS)]
        accepted = [status for status, _ in attackers if status.split()[1] == b"100"]
        refused = [status for status, _ in attackers if status.split()[1] == b"429"]
        assert len(accepted) == BUDGET // BODY
        assert len(refused) == ATTACKERS - len(accepted)
        for _, writer in attackers:
            writer.close()
    finally:
        await mesh.close()
