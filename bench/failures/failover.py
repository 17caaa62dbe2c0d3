"""What callers notice when a worker dies: streams at two workers under `specmesh up`, one of them is killed (kill -9),
stopped (SIGSTOP) or drained (SIGTERM) when all streams have begun, again and again. Compared with a calm run.
As root also `partition`: one of the two is in a network namespace, and nothing gets through to it for five seconds.

The gap of a stream is the longest time without new text in it. A fault is seen when the streamer's health no longer
calls the worker ready. Two workers need twice the memory of one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from bench.failures.partition import Link, mesh_with_far_worker
from bench.running_mesh import MeshFailed, RunningMesh, descendants, is_parent, running_mesh
from bench.shown import Shown

HELP = "streams at two workers of which one dies, is stopped or drained: failures, changed texts, gaps"
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "drain": signal.SIGTERM}
PARTITION, PARTED = "partition", 5.0  # s
FAR = "worker-far"
NAME = "measured"
# Chunks of each stream before a worker is struck.
BEGUN = 3
BACK_WITHIN = 240.0  # s, until both workers are ready again
BARS = {"kill": ("gap p99, s", 1.5), "stop": ("seen after, s", 3.0)}
SHOWN = (
    Shown("A worker that dies under streams", "kill|stop|drain",
          {"times": "times", "failed": "failed", "differ": "texts that differ", "seen after, s": "seen after, s",
           "gap p50, s": "gap p50, s", "gap p99, s": "p99"},
          "Streams at two workers, one of which is struck when all have begun. The gap of a stream is its longest "
          "time without new text."),
    Shown("A worker that is cut off for 5 s", "partition",
          {"times": "times", "failed": "failed", "differ": "texts that differ", "seen after, s": "seen after, s",
           "gap p50, s": "gap p50, s", "gap p99, s": "p99"}),
)  # fmt: skip


class Heard(NamedTuple):
    text: str
    at: list[float]
    error: str

    @property
    def gap(self) -> float:
        return max((later - before for before, later in zip(self.at, self.at[1:], strict=False)), default=0.0)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--faults", default="kill,stop", help=f"comma-separated, of {', '.join((*SIGNALS, PARTITION))}")
    parser.add_argument("--times", type=int, default=10, metavar="N", help="of each (default 10)")
    parser.add_argument("--streams", type=int, default=16, metavar="N", help="at a time (default 16)")
    parser.add_argument("--tokens", type=int, default=120, metavar="N", help="of each answer (default 120)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="which worker it is each time (default 1)")


# Strikes once, and says after how many seconds that was seen.
Strike = Callable[[RunningMesh], Awaitable[float]]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    faults = options.faults.split(",")
    chance = random.Random(options.seed)
    # What was learned in the calm run would end every answer before the fault.
    settings = {"served_model_name": NAME, "method": "ngram"}
    figures: dict[str, Any] = {}
    if signals := {fault: _signalled(SIGNALS[fault], chance) for fault in faults if fault != PARTITION}:
        with running_mesh(workers=2, **settings) as mesh:
            figures |= asyncio.run(_measured(mesh, options, signals))
    if PARTITION in faults:
        with (
            tempfile.TemporaryDirectory(prefix="mesh-") as folder,
            mesh_with_far_worker(Path(folder), **settings) as (mesh, link),
        ):
            figures |= asyncio.run(_measured(mesh, options, {PARTITION: _parted(link)}))
    return figures | {"missed": list(missed(figures))}


async def _measured(mesh: RunningMesh, options: argparse.Namespace, faults: dict[str, Strike]) -> dict[str, Any]:
    await both_ready(mesh)
    calm = await together(mesh, options, asyncio.Event())
    figures: dict[str, Any] = {"calm": told(calm, calm)}
    for fault, strike in faults.items():
        heard: list[Heard] = []
        seen: list[float] = []
        for _ in range(options.times):
            struck = asyncio.create_task(_when_begun(begun := asyncio.Event(), strike(mesh)))
            heard += await together(mesh, options, begun)
            seen.append(await struck)
            await both_ready(mesh)
            print(f"{fault}: {json.dumps(told(heard, calm))}", flush=True)
        figures[fault] = {"times": options.times, "seen after, s": round(max(seen), 2), **told(heard, calm)}
    return figures


async def _when_begun(begun: asyncio.Event, strike: Awaitable[float]) -> float:
    await begun.wait()
    return await strike


def told(heard: list[Heard], calm: list[Heard]) -> dict[str, Any]:
    gaps = sorted(each.gap for each in heard)
    return {
        "failed": sum(bool(each.error) for each in heard),
        "differ": sum(each.text != calm[number % len(calm)].text for number, each in enumerate(heard)),
        "gap p50, s": round(gaps[len(gaps) // 2], 3),
        "gap p99, s": round(gaps[len(gaps) * 99 // 100], 3),
        "gap, longest, s": round(gaps[-1], 3),
    }


def missed(figures: dict[str, Any]) -> Iterator[str]:
    for fault, seen in figures.items():
        if seen["failed"] or seen["differ"]:
            yield f"{fault}: {seen['failed']} failed, {seen['differ']} texts differ"
        name, most = BARS.get(fault, ("", 0.0))
        if name and seen[name] > most:
            yield f"{fault}: {name} is {seen[name]}, the bar is {most}"


# Streams ---------------------------------------------------------------------------------------------------


async def together(mesh: RunningMesh, options: argparse.Namespace, begun: asyncio.Event) -> list[Heard]:
    """All streams at once; `begun` is set when they are under way."""
    left = BEGUN * options.streams
    no_limits = aiohttp.TCPConnector(limit=0)

    def came() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            begun.set()

    async with aiohttp.ClientSession(connector=no_limits, timeout=aiohttp.ClientTimeout(total=600)) as session:
        bodies = [_body(number, options.tokens) for number in range(options.streams)]
        return await asyncio.gather(*(_listen(session, mesh.url, body, came) for body in bodies))


def _body(number: int, tokens: int) -> dict[str, Any]:
    prompt = f"Story number {number}: once upon a time there was a {number} and then another {number}"
    return {
        "model": NAME, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True,
    }  # fmt: skip


async def _listen(session: aiohttp.ClientSession, url: str, body: dict[str, Any], came: Any) -> Heard:
    text, at, done = "", list[float](), False
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        if answer.status != 200:
            return Heard("", [], await answer.text())
        async for raw in answer.content:
            line = raw.strip()
            if not line.startswith(b"data: {"):
                done = done or line == b"data: [DONE]"
                continue
            event = json.loads(line[6:])
            if "error" in event:
                return Heard(text, at, str(event["error"]))
            if piece := "".join(each.get("text") or "" for each in event["choices"]):
                text += piece
                at.append(time.perf_counter())
                came()
    return Heard(text, at, "" if done else "the stream has no end")


# Faults ----------------------------------------------------------------------------------------------------


def _signalled(number: signal.Signals, chance: random.Random) -> Strike:
    async def strike(mesh: RunningMesh) -> float:
        pids = await asyncio.to_thread(workers, mesh)
        name = chance.choice(sorted(pids))
        os.kill(pids[name], number)
        return await _seen_after(mesh, name)

    return strike


def _parted(link: Link) -> Strike:
    async def strike(mesh: RunningMesh) -> float:
        link.cut()
        mended = asyncio.get_running_loop().call_later(PARTED, link.mend)
        try:
            return await _seen_after(mesh, FAR)
        finally:
            await asyncio.sleep(max(0.0, mended.when() - asyncio.get_running_loop().time()))

    return strike


async def _seen_after(mesh: RunningMesh, name: str) -> float:
    """Seconds until the streamer no longer calls that worker ready."""
    struck = time.perf_counter()
    async with aiohttp.ClientSession() as session:
        # There is no event of another process's view.
        while await _state(session, mesh, name) == "ready":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return time.perf_counter() - struck


async def _state(session: aiohttp.ClientSession, mesh: RunningMesh, instance: str) -> str:
    async with session.get(f"{mesh.url}/health/ready") as answer:
        found = (await answer.json())["roles"]["worker"]
    return next((str(each["state"]) for each in found if each["instance"] == instance), "gone")


def workers(mesh: RunningMesh) -> dict[str, int]:
    """The processes that do the work, by instance."""
    found = descendants(mesh.process.pid).items()
    return {_instance(pid): pid for pid, command in found if " run worker" in command and not is_parent(pid)}


def _instance(pid: int) -> str:
    pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(each.split(b"=", 1) for each in pairs if b"=" in each)[b"SPECMESH_INSTANCE"].decode()


async def both_ready(mesh: RunningMesh) -> None:
    """As the streamer sees them."""
    end = time.monotonic() + BACK_WITHIN
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{mesh.url}/health/ready") as answer:
                found = (await answer.json())["roles"]["worker"]
            if sum(each["state"] == "ready" for each in found) == 2:
                return
            if time.monotonic() > end:
                raise MeshFailed(f"no two workers within {BACK_WITHIN:g} s: {found}")
            await asyncio.sleep(0.1)
