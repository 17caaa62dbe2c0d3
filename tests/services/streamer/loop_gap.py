"""How long one request keeps the streamer's event loop: the longest gap of a 1 ms ticker, for each of a few attacks.

    PYTHONPATH=.:tests:tests/services/streamer python tests/services/streamer/loop_gap.py [whole|streams|slow ...]

Streamer, worker and clients are three processes. On a busy machine a gap has its waits in it, too: so there are two
numbers, the longest gap, and the longest time that the loop's thread computed in one.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvloop
from fake_mesh import CARD, MODEL, DoorUnderTest, FakeContext, FakeDirectory, FakeTarget, FakeTokenizer, says
from prometheus_client import CollectorRegistry

from mesh.codec import Codec
from mesh.directory.membership import Member
from mesh.node import Node
from mesh.transport.zmq import ZmqTransport
from services.api.messages import KINDS
from services.api.settings import Settings

TEXT = [97 + place % 26 for place in range(2000)]
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1000}
TOP = {"logprobs": True, "top_logprobs": 20}
PROMPTS = [f"prompt {number}" for number in range(16)]
WHOLE = {"model": MODEL, "prompt": PROMPTS, "n": 8, "max_tokens": 500, "logprobs": 20}
# The request, how many of them at once, and the seconds that a client waits behind each read.
ATTACKS: dict[str, tuple[str, dict[str, Any], int, float]] = {
    "whole": ("/v1/completions", WHOLE, 1, 0.0),
    "streams": ("/v1/chat/completions", {**CHAT, **TOP, "stream": True}, 10, 0.0),
    "slow": ("/v1/chat/completions", {**CHAT, **TOP, "stream": True}, 50, 0.1),
    "plain": ("/v1/chat/completions", {**CHAT, "stream": True}, 200, 0.0),
    "slow plain": ("/v1/chat/completions", {**CHAT, "stream": True}, 50, 0.1),
}


async def far_side(folder: str) -> None:
    for role, actor in (("worker", FakeTarget(says(TEXT, group=4))), ("tokenizer", FakeTokenizer())):
        if isinstance(actor, FakeTarget):
            actor.card = msgspec.structs.replace(CARD, max_context=4096)
        node = Node(ZmqTransport(), Codec(KINDS), name=f"{role}-1")
        await node.start(f"ipc://{folder}/{role}")
        await node.spawn(actor, role)
    await asyncio.Event().wait()


async def clients(url: str, body: dict[str, Any], count: int, pause: float, seconds: float) -> None:
    async def one(http: aiohttp.ClientSession) -> None:
        async with http.post(url, json=body) as response:
            assert response.status == 200, await response.text()
            async for _ in response.content.iter_chunked(4096 if pause else 1 << 20):
                await asyncio.sleep(pause)

    async with aiohttp.ClientSession(read_bufsize=4096, timeout=aiohttp.ClientTimeout(seconds)) as http:
        await asyncio.gather(*(one(http) for _ in range(count)), return_exceptions=bool(pause))


async def main(folder: str, wanted: list[str]) -> None:
    directory = FakeDirectory()
    for role in ("worker", "tokenizer"):
        far = f"ipc://{folder}/{role}"
        directory.change(Member(role=role, instance=f"{role}-1", endpoint=far, epoch=0, state="ready"))
    node = Node(ZmqTransport(), Codec(KINDS), name="streamer-1")
    await node.start(f"ipc://{folder}/streamer")
    settings = Settings.for_tests(port=0, served_model_name=MODEL)
    context: Any = FakeContext(settings, node, directory, CollectorRegistry())
    door = DoorUnderTest(context)
    await node.spawn(door, "streamer")
    for name in wanted:
        path, body, count, pause = ATTACKS[name]
        arguments = (clients, f"http://127.0.0.1:{door.port}{path}", body, count, pause, 60.0 if not pause else 15.0)
        attack = multiprocessing.get_context("spawn").Process(target=run, args=arguments, daemon=True)
        attack.start()
        began = last = time.monotonic()
        computed = time.thread_time()
        longest = most = 0.0
        while attack.is_alive():
            await asyncio.sleep(0.001)
            now, thread = time.monotonic(), time.thread_time()
            longest, most = max(longest, now - last), max(most, thread - computed)
            last, computed = now, thread
        gaps = f"longest gap {longest * 1000:.0f} ms, most computed in one {most * 1000:.0f} ms"
        print(f"{name}: {gaps}, in {last - began:.1f} s", flush=True)
    await node.stop(0.0)


def run(work: Any, *arguments: Any) -> None:
    uvloop.run(work(*arguments))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        worker = multiprocessing.get_context("spawn").Process(target=run, args=(far_side, place), daemon=True)
        worker.start()
        while not (Path(place) / "tokenizer").exists():
            time.sleep(0.05)
        uvloop.run(main(place, sys.argv[1:] or list(ATTACKS)))
        worker.terminate()
