"""What tests of a mesh with prefill and decode workers ask it, and see of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
from running_mesh import RunningMesh, until
from sse_client import Answer, body, complete

from bench.running_mesh import descendants

STREAMS = 6


def prompts(streams: int, words: int) -> list[str]:
    return [f"Story number {k}. " + f"Once upon a time there were {k} of them. " * words for k in range(streams)]


async def run_all(mesh: RunningMesh, tokens: int, words: int, streams: int = STREAMS, **more: Any) -> list[Answer]:
    return await ask_all(mesh, prompts(streams, words), tokens, **more)


async def ask_all(
    mesh: RunningMesh, prompts: Sequence[str | list[int]], tokens: int, **more: Any
) -> list[Answer]:
    """All at once."""
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        asked = [body(each, max_tokens=tokens, ignore_eos=True, **more) for each in prompts]
        return list(await asyncio.gather(*(complete(session, mesh.url, each) for each in asked)))


def texts(answers: list[Answer]) -> list[str]:
    assert [each.error for each in answers if each.error] == []
    assert all(each.completed and each.ends == 1 for each in answers)
    return [each.text for each in answers]


def workers(mesh: RunningMesh, command: str = " run worker") -> dict[str, int]:
    """Process ids, by instance."""
    found = {}
    for pid, line in descendants(mesh.process.pid).items():
        if command in line:
            for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if entry.startswith(b"SPECMESH_INSTANCE="):
                    found[entry.partition(b"=")[2].decode()] = pid
    return found


def figure(mesh: RunningMesh, number: int, name: str, *labels: str) -> float:
    """A metric of the worker with this number: prefill workers come first."""
    status, text = mesh.get("/metrics", mesh.metrics_base + 3 + 10 * number)
    lines = [line for line in text.splitlines() if line.startswith(name) and all(label in line for label in labels)]
    return sum(float(line.split()[-1]) for line in lines) if status == 200 else -1.0


def wait_for_workers(mesh: RunningMesh, count: int) -> None:
    """They are ready, and the streamer knows it: without a prefill worker it would send requests to others alone."""

    def known() -> int:
        status, text = mesh.get("/v1/mesh")
        members = json.loads(text)["members"] if status == 200 else []
        return sum(each["role"] == "worker" and each["state"] == "ready" for each in members)

    def ready() -> bool:
        alive = [mesh.get("/health/ready", mesh.metrics_base + 3 + 10 * each)[0] == 200 for each in range(count)]
        return all(alive) and known() >= count

    until(ready, 240.0, why=lambda: f"no {count} workers are ready\n{mesh.text()[-4000:]}")


def no_page_is_in_use(mesh: RunningMesh, count: int) -> None:
    def idle() -> bool:
        return all(figure(mesh, each, "specmesh:kv_pages", 'state="in_use"') == 0.0 for each in range(count))

    until(idle, 60.0, why=lambda: [figure(mesh, each, "specmesh:kv_pages") for each in range(count)])
