"""The only worker is stopped (SIGSTOP) under streams: it is replaced, and every stream ends with the same text."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import aiohttp
from running_mesh import RunningMesh, running_mesh
from sse_client import Answer, body, complete

PROFILE = '{"step_ms": 5, "vocab_size": 49152}'
STREAMS, TOKENS = 8, 100


async def answers(mesh: RunningMesh, begun: asyncio.Event) -> list[Answer]:
    chunks = 0

    def count(chunk: Any) -> None:
        nonlocal chunks
        chunks += 1
        if chunks == 2 * STREAMS:
            begun.set()

    async with aiohttp.ClientSession() as session:
        requests = [
            body(f"Story {number}", max_tokens=TOKENS, ignore_eos=True, speculation={"method": "naive"})
            for number in range(STREAMS)
        ]
        return await asyncio.gather(*(complete(session, mesh.url, each, count) for each in requests))


async def test_a_stopped_worker_is_replaced_and_its_streams_say_the_same(tmp_path: Path) -> None:
    # It isn't waited for: a process without progress would never be killed.
    with running_mesh(tmp_path, engine="mock", mock_profile=PROFILE, kill_stuck_after=0, request_timeout=30) as mesh:
        calm = await answers(mesh, asyncio.Event())
        assert all(each.completed for each in calm)
        begun = asyncio.Event()
        running = asyncio.create_task(answers(mesh, begun))
        await begun.wait()
        stopped = mesh.kill("worker", signal.SIGSTOP)
        disturbed = await running
        assert [each.error for each in disturbed] == [None] * STREAMS
        assert [each.text for each in disturbed] == [each.text for each in calm]
        assert mesh.pid("worker") != stopped
