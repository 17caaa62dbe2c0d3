"""The actor runtime alone: round trips and streams between two processes over ipc. No models, no HTTP."""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Awaitable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import uvloop
from prometheus_client import CollectorRegistry

from bench.shown import Shown
from mesh.actor import Actor, Call
from mesh.clock import SystemClock
from mesh.codec import Codec
from mesh.metrics import BusMetrics
from mesh.node import Node
from mesh.ref import Ref
from mesh.stream import StreamWriter
from mesh.transport.zmq import ZmqTransport

HELP = "the actor runtime alone: round trips and streams over ipc"
WARM_UP = 300
SHOWN = (
    Shown("Question and answer between two processes over ipc", "ask", {"p50_us": "p50, µs", "p99_us": "p99, µs"}),
)  # fmt: skip


class Ping(msgspec.Struct, frozen=True, array_like=True):
    number: int
    ids: list[int]


class Pull(msgspec.Struct, frozen=True, array_like=True):
    """A stream of so many items, each of `ids` numbers."""

    items: int
    ids: int


CODEC_TABLE = {"ping": Ping, "pull": Pull}


class EchoActor(Actor):
    handlers: ClassVar = {Ping: "ping"}
    streams: ClassVar = {Pull: "pull"}

    async def ping(self, message: Ping, call: Call) -> Ping:
        return message

    async def pull(self, message: Pull, call: Call, out: StreamWriter) -> None:
        ids = list(range(message.ids))
        for number in range(message.items):
            await out.send(Ping(number, ids))


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--round-trips", type=int, default=5000)
    parser.add_argument("--items", type=int, default=60_000, help="stream items in all")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bus-") as folder:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        server = spawn.Process(target=_server, args=(theirs, folder), daemon=True)
        server.start()
        endpoint = ours.recv()
        figures = uvloop.run(_client(endpoint, folder, options))
        ours.send("stop")
        server.join(10)
        figures["server_stopped"] = server.exitcode == 0
    return figures


def _node(name: str) -> Node:
    metrics = BusMetrics(CollectorRegistry())
    return Node(ZmqTransport(), Codec(CODEC_TABLE), name=name, clock=SystemClock(), metrics=metrics)


async def _client(endpoint: str, folder: str, options: argparse.Namespace) -> dict[str, Any]:
    node = _node("bench-client")
    await node.start(f"ipc://{Path(folder) / 'client.sock'}")
    try:
        echo = node.ref(endpoint, "echo")
        return {
            "ask": await _asks(echo, options.round_trips),
            "ask_64_at_once": await _asks_at_once(echo, options.round_trips * 2, 64),
            "stream_1": await _streams(echo, options.items, 1),
            "stream_64": await _streams(echo, options.items, 64),
        }
    finally:
        await node.stop(timeout=2.0)


async def _asks(echo: Ref, count: int) -> dict[str, float]:
    took = np.empty(count)
    for number in range(-WARM_UP, count):
        begin = time.perf_counter()
        await echo.ask(Ping(number, [1, 2, 3]), timeout=5.0)
        took[number] = time.perf_counter() - begin
    return _microseconds(took)


async def _asks_at_once(echo: Ref, count: int, callers: int) -> dict[str, float]:
    async def caller() -> None:
        for number in range(count // callers):
            await echo.ask(Ping(number, [1, 2, 3]), timeout=5.0)

    seconds = await _timed(asyncio.gather(*(caller() for _ in range(callers))))
    return {"asks_per_s": count // callers * callers / seconds}


async def _streams(echo: Ref, items: int, streams: int) -> dict[str, float]:
    each = items // streams

    async def reader() -> None:
        expected = 0
        async with echo.stream(Pull(each, 4), timeout=120.0) as stream:
            async for item in stream:
                assert item.number == expected
                expected += 1
        assert expected == each

    seconds = await _timed(asyncio.gather(*(reader() for _ in range(streams))))
    return {"items_per_s": each * streams / seconds}


async def _timed(work: Awaitable[Any]) -> float:
    begin = time.perf_counter()
    await work
    return time.perf_counter() - begin


def _microseconds(took: np.ndarray[Any, Any]) -> dict[str, float]:
    return {f"p{percent}_us": float(np.percentile(took, percent) * 1e6) for percent in (50, 90, 99)}


# The other process ----------------------------------------------------------------------------------------


def _server(pipe: Connection, folder: str) -> None:
    uvloop.run(_serve(pipe, folder))


async def _serve(pipe: Connection, folder: str) -> None:
    node = _node("bench-server")
    await node.start(f"ipc://{Path(folder) / 'server.sock'}")
    await node.spawn(EchoActor(), "echo")
    pipe.send(node.endpoint)
    await asyncio.to_thread(pipe.recv)
    await node.stop(timeout=2.0)
