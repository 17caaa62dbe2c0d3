"""Either side is restarted under traffic, again and again: nothing acknowledged is lost, nothing comes twice.

The reader keeps the numbers it has and asks for the rest, as a request does with its next attempt; what was
told as an answer counts as acknowledged, and must have been done exactly once.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import ClassVar

import pytest
from mesh_doubles.messages import Count, Echo, Number, codec, until

from mesh.actor import Actor, Call
from mesh.errors import MeshError, PeerLost
from mesh.node import Node
from mesh.stream import StreamWriter
from mesh.timing import Timing
from mesh.transport.zmq import ZmqTransport

TIMING = Timing(connect=0.3, silence=1.0, ping=0.1, credit=0.005, sweep=0.02, farewell=0.1, linger=0.05)


class Ledger(Actor):
    """Counts what it did; the books outlive the actor, as a database would."""

    handlers: ClassVar = {Echo: "echo"}
    streams: ClassVar = {Count: "count"}
    concurrency = 16

    def __init__(self, done: dict[int, int]) -> None:
        self.done = done

    async def echo(self, message: Echo, call: Call) -> Echo:
        self.done[message.number] = self.done.get(message.number, 0) + 1
        return message

    async def count(self, message: Count, call: Call, out: StreamWriter) -> None:
        for number in range(message.start, message.stop):
            await out.send(Number(number))
            if number % 16 == 0:
                await asyncio.sleep(0)


class Side:
    """One of the two processes; `restart` is a new one at the same place."""

    def __init__(self, name: str, endpoint: str, done: dict[int, int] | None = None) -> None:
        self.name = name
        self.endpoint = endpoint
        self.done = done
        self.node: Node | None = None

    async def start(self) -> None:
        node = Node(ZmqTransport(), codec, name=self.name, timing=TIMING)
        await node.start(self.endpoint)
        if self.done is not None:
            await node.spawn(Ledger(self.done), "ledger")
        self.node = node

    async def restart(self, gently: bool) -> None:
        node, self.node = self.node, None
        assert node is not None
        if not gently:
            # As if killed: the sockets are gone before anything can be said.
            await node._transport.close(0)
        await node.stop(timeout=1.0 if gently else 0)
        await self.start()


class Traffic:
    """Streams and asks from `near` to `far`, through every restart."""

    def __init__(self, near: Side, far: Side) -> None:
        self.near = near
        self.far = far
        self.read: dict[int, int] = {}  # reader -> the number it expects next
        self.answered: list[int] = []
        self.failures = 0
        self.going = True

    async def reader(self, index: int) -> None:
        self.read[index] = 0
        while self.going:
            start = self.read[index]
            try:
                ref = self._ref()
                async with ref.stream(Count(start + 5000, start), timeout=30.0, window=4096) as stream:
                    async for item in stream:
                        assert item.number == self.read[index], "lost or repeated"
                        self.read[index] += 1
                        if not self.going:
                            break
            except MeshError:
                self.failures += 1
                await asyncio.sleep(0.001)

    async def asker(self, index: int) -> None:
        number = index * 1_000_000
        while self.going:
            number += 1
            try:
                await self._ref().ask(Echo(number), timeout=10.0)
                self.answered.append(number)
            except MeshError:
                self.failures += 1
                await asyncio.sleep(0.001)

    def _ref(self):  # type: ignore[no-untyped-def]
        node = self.near.node
        if node is None:
            raise MeshError("restarting")
        return node.ref(self.far.endpoint, "ledger")


async def restart_under_traffic(folder: Path, restarts: int, seed: int) -> None:
    rng = random.Random(seed)
    done: dict[int, int] = {}
    far, near = Side("far", f"ipc://{folder}/far.sock", done), Side("near", f"ipc://{folder}/near.sock")
    await far.start()
    await near.start()
    traffic = Traffic(near, far)
    work = [asyncio.ensure_future(traffic.reader(index)) for index in range(4)]
    work += [asyncio.ensure_future(traffic.asker(index)) for index in range(2)]
    for _ in range(restarts):
        before = sum(traffic.read.values())
        moved = before + rng.randrange(50)
        # Under traffic means: something has moved since the last restart.
        await until(lambda moved=moved: sum(traffic.read.values()) > moved, timeout=20.0)
        await rng.choice((far, near)).restart(gently=rng.random() < 0.5)
    traffic.going = False
    async with asyncio.timeout(10.0):
        await asyncio.gather(*work)
    assert min(traffic.read.values()) > 0
    assert traffic.failures > 0
    assert [number for number in traffic.answered if done.get(number) != 1] == [], "answered, so done once"
    assert [number for number, times in done.items() if times > 1] == [], "nothing was done twice"
    for side in (near, far):
        assert side.node is not None
        await side.node.stop(timeout=1.0)


class Wire:
    """A pair of unix sockets between the two sides, cut in the middle of whatever is on it."""

    def __init__(self, folder: Path) -> None:
        self.near = f"{folder}/wire.sock"
        self.far = f"{folder}/far.sock"
        self.carried = 0
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._connected, self.near)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(self.far)
        self.connections += 1
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._writers.add(sink)
            task = asyncio.ensure_future(self._carry(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(512):
                self.carried += len(data)
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(sink)
            sink.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_a_connection_cut_a_hundred_times_breaks_streams_and_loses_nothing_else(tmp_path: Path) -> None:
    """Same epochs, new connections: each cut is seen by the reader at once, who asks for the rest on the next one."""
    patient = Timing(connect=5.0, silence=10.0, ping=0.1, credit=0.005, sweep=0.02)
    far = Node(ZmqTransport(), codec, name="far", timing=patient)
    near = Node(ZmqTransport(), codec, name="near", timing=patient)
    wire = Wire(tmp_path)
    await far.start(f"ipc://{wire.far}")
    await near.start()
    await far.spawn(Ledger({}), "ledger")
    await wire.start()
    read = [0, 0, 0]
    broken = 0
    going = True

    async def reader(index: int) -> None:
        nonlocal broken
        ref = near.ref(f"ipc://{wire.near}", "ledger")
        while going:
            try:
                async with ref.stream(Count(10_000_000, read[index]), timeout=60.0, window=8192) as stream:
                    async for item in stream:
                        assert item.number == read[index], "lost or repeated"
                        read[index] += 1
                        if not going:
                            break
            except PeerLost:
                broken += 1

    work = [asyncio.ensure_future(reader(index)) for index in range(3)]
    for _ in range(100):
        before, connections = wire.carried, wire.connections
        # Each time with traffic on the new connection.
        await until(lambda before=before: wire.carried >= before + 4000)
        wire.cut()
        await until(lambda connections=connections: wire.connections > connections)
    going = False
    async with asyncio.timeout(10.0):
        await asyncio.gather(*work)
    assert min(read) > 1000
    assert broken >= 250
    # No handler of a broken stream is left.
    await until(lambda: far._gauges().streams_open["writing"] == 0)
    await near.stop()
    await far.stop()
    await wire.close()


async def test_a_hundred_restarts_of_either_side_lose_and_repeat_nothing(tmp_path: Path) -> None:
    await restart_under_traffic(tmp_path, 100, seed=1)


@pytest.mark.slow
async def test_a_thousand_restarts_of_either_side_lose_and_repeat_nothing(tmp_path: Path) -> None:
    await restart_under_traffic(tmp_path, 1000, seed=2)
