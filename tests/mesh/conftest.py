"""Nodes for tests, over memory and over ZeroMQ, stopped and checked for leaks when the test ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mesh_doubles.clock import FakeClock
from mesh_doubles.memory import MemoryNetwork
from mesh_doubles.messages import codec

from mesh.codec import Codec
from mesh.node import Node
from mesh.timing import Timing
from mesh.transport import Transport
from mesh.transport.zmq import ZmqTransport


class Mesh:
    """Makes nodes that can reach each other. `quick` is only for tests of loss: a slow machine would look lost."""

    timing = Timing(connect=5.0, silence=10.0, ping=0.1, credit=0.005, sweep=0.02, farewell=1.0)
    quick = Timing(connect=0.1, silence=10.0, ping=0.1, credit=0.005, sweep=0.02, farewell=1.0)

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.network = MemoryNetwork()
        self._folder = folder
        self._nodes: list[Node] = []

    def transport(self) -> Transport:
        if self.kind == "memory":
            return self.network.transport()
        return ZmqTransport()

    def endpoint(self, name: str) -> str:
        return f"mem://{name}" if self.kind == "memory" else f"ipc://{self._folder / name}"

    async def node(self, name: str, *, codec: Codec = codec, bind: bool = True, **more: Any) -> Node:
        more.setdefault("timing", self.timing)
        node = Node(self.transport(), codec, name=name, **more)
        await node.start(self.endpoint(name) if bind else None)
        self._nodes.append(node)
        return node

    async def close(self) -> None:
        for node in reversed(self._nodes):
            await node.stop(timeout=1.0)


@pytest.fixture(params=["memory", "zmq"])
async def mesh(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Mesh]:
    """One suite over both transports."""
    made = Mesh(request.param, tmp_path)
    yield made
    await made.close()
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.done()]
    assert [task for task in left if "/mesh/" in str(task.get_coro())] == []


@pytest.fixture
async def zmq_mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    made = Mesh("zmq", tmp_path)
    yield made
    await made.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


MakeNode = Callable[..., Awaitable[Node]]


@pytest.fixture
async def still_node(clock: FakeClock) -> AsyncIterator[MakeNode]:
    """Nodes on a MemoryNetwork whose time stands still: `await still_node(network, "a")`."""
    nodes: list[Node] = []

    async def make(network: MemoryNetwork, name: str, **more: Any) -> Node:
        more = {"timing": Timing(farewell=0.01), "clock": clock, **more}
        node = Node(network.transport(), codec, name=name, **more)
        await node.start(f"mem://{name}")
        nodes.append(node)
        return node

    yield make
    for node in reversed(nodes):
        await node.stop(timeout=0.02)
