"""A worker in its place: its own node on ipc, a client's node, and a proposer's, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from driving import request
from prometheus_client import CollectorRegistry

from mesh.actor import Actor, Call
from mesh.clock import SystemClock
from mesh.node import Node
from mesh.ref import Ref
from mesh.transport.zmq import ZmqTransport
from services.api.drafter import Draft
from services.api.drafts import PlacedDraft, pack
from services.api.messages import Failed, Finished, Generate, Propose, Proposed, Tokens
from services.api.settings import Settings
from services.proposer.actor import ProposerActor
from services.proposer.fast import compiling
from services.runtime.process import mesh_codec
from services.worker.actor import WorkerActor
from services.worker.engine import Engine
from services.worker.running.mock import CYCLE, FIRST


class FakeDirectory:
    """Tells of proposers that are ready."""

    def __init__(self) -> None:
        self.proposers: list[Any] = []
        self._changed: list[Callable[[], None]] = []

    def on_change(self, callback: Callable[[], None]) -> None:
        self._changed.append(callback)

    def members(self, role: str) -> list[Any]:
        return []

    def ready(self, role: str) -> list[Any]:
        assert role == "proposer"
        return self.proposers

    def say(self, *nodes: Node) -> None:
        """These are ready, and no others."""
        self.proposers = [
            SimpleNamespace(instance=node.endpoint, endpoint=node.endpoint, epoch=node.epoch) for node in nodes
        ]
        for callback in self._changed:
            callback()

    async def stop(self) -> None:
        pass


def context(settings: Settings, role: str, node: Node, directory: Any) -> Any:
    return SimpleNamespace(
        settings=settings,
        role=role,
        instance=f"{role}-1",
        node=node,
        directory=directory,
        registry=CollectorRegistry(),
        clock=SystemClock(),
        security=None,
    )


class CycleProposer(Actor):
    """Drafts the cycle that most of the mock's text follows."""

    handlers: ClassVar = {Propose: "propose"}

    def __init__(self) -> None:
        self.asked = self.drafted = 0
        # The last token of each text.
        self.last: dict[int, int] = {}

    async def propose(self, message: Propose, call: Call) -> Proposed:
        self.asked += 1
        drafts: list[PlacedDraft] = []
        unknown: list[int] = []
        for item in message.items:
            if not item.first and item.sequence_id not in self.last:
                unknown.append(item.sequence_id)
                continue
            if item.tokens:
                self.last[item.sequence_id] = item.tokens[-1]
            last = item.ahead[-1] if item.ahead else self.last[item.sequence_id]
            tokens = [FIRST + (last - FIRST + 1 + i) % CYCLE for i in range(item.budget)]
            drafts.append(PlacedDraft(item.sequence_id, item.committed + len(item.ahead), Draft(tokens, "cycle")))
        self.drafted += len(drafts)
        return Proposed(step=message.step, drafts=pack(drafts), unknown=unknown)


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """For what happens in the engine's thread."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@dataclass
class MeshAround:
    folder: Path
    worker: WorkerActor
    worker_node: Node
    client: Node
    ref: Ref
    directory: FakeDirectory
    registry: CollectorRegistry
    exits: list[int]
    nodes: list[Node] = field(default_factory=list)
    # Answers to the requests that `start_proposer` ran.
    warming: list[Answer] = field(default_factory=list)

    async def start_proposer(self, actor: Actor | None = None, beside: Sequence[Node] = (), **settings: Any) -> Node:
        """A proposer that the worker asks; `actor` instead of the real one. All that are ready are this one and those
        `beside` it."""
        name = f"proposer-{len(self.nodes)}"
        node = Node(ZmqTransport(), mesh_codec(), name=name)
        await node.start(f"ipc://{self.folder}/{name}")
        self.nodes.append(node)
        await node.spawn(actor or await self._proposer(node, **settings), "proposer")
        self.directory.say(*beside, node)
        await self._until_asked()
        return node

    async def _proposer(self, node: Node, **settings: Any) -> Actor:
        # Before its loops are compiled it has nothing to say.
        await asyncio.to_thread(compiling.start().join)
        return ProposerActor(context(Settings.for_tests(**settings), "proposer", node, FakeDirectory()))

    async def _until_asked(self) -> None:
        """Sockets connect when they do, and the mock may be done before: run requests until one was asked about."""
        client = self.engine.drafts.controller.client
        asked = client.count("asked")
        while client.count("asked") == asked:
            self.warming.append(await self.generate(request(max_tokens=20, method="ngram")))

    @property
    def engine(self) -> Engine:
        assert self.worker._engine is not None
        return self.worker._engine

    async def loaded(self) -> None:
        await until(lambda: self.worker.ready() != ["loading model"])

    async def generate(self, generate: Generate, timeout: float = 30.0) -> Answer:
        """Everything that is said about one request."""
        answer = Answer()
        async with self.ref.stream(generate, timeout=timeout) as stream:
            async for item in stream:
                answer.items.append(item)
        return answer


@dataclass
class Answer:
    items: list[Any] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [token for item in self.items if isinstance(item, Tokens) for token in item.ids]

    @property
    def end(self) -> Any:
        """The one end there is, which is the last word."""
        ends = [item for item in self.items if isinstance(item, Finished | Failed)]
        assert len(ends) == 1 and self.items[-1] is ends[0], self.items
        return ends[0]


@asynccontextmanager
async def mesh_around(folder: Path, runner: Any = None, **settings: Any) -> AsyncIterator[MeshAround]:
    # auto would not ask: steps of the mock take no time.
    chosen = Settings.for_tests(**{"engine": "mock", "method": "ngram", "draft_deadline_ms": 1000.0, **settings})
    node = Node(ZmqTransport(), mesh_codec(), name="worker-1")
    await node.start(f"ipc://{folder}/worker-1")
    directory, exits = FakeDirectory(), []
    around = context(chosen, "worker", node, directory)
    worker = WorkerActor(around, runner, end_process=exits.append)
    await node.spawn(worker, "worker")
    client = Node(ZmqTransport(), mesh_codec(), name="client")
    await client.start()
    mesh = MeshAround(
        folder, worker, node, client, client.ref(node.endpoint, "worker"), directory, around.registry, exits
    )
    try:
        await mesh.loaded()
        yield mesh
    finally:
        for each in [client, node, *mesh.nodes]:
            await each.stop(5.0)


async def all_of(mesh: MeshAround, requests: list[Generate]) -> list[Answer]:
    return list(await asyncio.gather(*(mesh.generate(each) for each in requests)))
