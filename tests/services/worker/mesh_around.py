"""A target in its place: its own node on ipc, a client's node, and a proposer's, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from mesh.actor import Actor
from mesh.clock import SystemClock
from mesh.node import Node
from mesh.ref import Ref
from mesh.zmq_transport import ZmqTransport
from services.api.messages import Failed, Finished, Generate, Sampling, Speculation, Tokens
from services.api.settings import Settings
from services.proposer.actor import ProposerActor
from services.proposer.suffix_store import compiling
from services.runtime.process import mesh_codec
from services.worker.actor import WorkerActor


class FakeDirectory:
    """Tells of one proposer, or of none."""

    def __init__(self) -> None:
        self.proposer: Any = None
        self.candidate: Any = None
        self._changed: list[Callable[[], None]] = []

    def on_change(self, callback: Callable[[], None]) -> None:
        self._changed.append(callback)

    def pick(self, role: str, key: str | None = None) -> Any:
        assert role == "proposer"
        return self.proposer

    def members(self, role: str) -> list[Any]:
        return []

    def ready(self, role: str) -> list[Any]:
        assert role == "proposer"
        return [member for member in (self.proposer, self.candidate) if member is not None]

    def say(self, endpoint: str, epoch: int, candidate: bool = False) -> None:
        said = SimpleNamespace(endpoint=endpoint, epoch=epoch, candidate=candidate) if endpoint else None
        if candidate:
            self.candidate = said
        else:
            self.proposer = said
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


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """For what happens in the step thread, which tells nobody."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@dataclass
class MeshAround:
    folder: Path
    target: WorkerActor
    target_node: Node
    client: Node
    ref: Ref
    directory: FakeDirectory
    registry: CollectorRegistry
    exits: list[int]
    nodes: list[Node] = field(default_factory=list)
    # Answers to the requests that `start_proposer` ran.
    warming: list[Answer] = field(default_factory=list)

    async def start_proposer(self, actor: Actor | None = None, **settings: Any) -> Node:
        """A proposer the target hears of; `actor` instead of the real one."""
        node = await self._node(actor, **settings)
        self.directory.say(node.endpoint, node.epoch)
        await self._until_asked()
        return node

    async def start_candidate(self, actor: Actor | None = None, **settings: Any) -> Node:
        """One that may take over."""
        node = await self._node(actor, **settings)
        self.directory.say(node.endpoint, node.epoch, candidate=True)
        return node

    async def _node(self, actor: Actor | None, **settings: Any) -> Node:
        name = f"proposer-{len(self.nodes)}"
        node = Node(ZmqTransport(), mesh_codec(), name=name)
        await node.start(f"ipc://{self.folder}/{name}")
        self.nodes.append(node)
        # Before its loops are compiled a real one has nothing to say.
        await asyncio.to_thread(compiling.start().join)
        made = actor or ProposerActor(context(Settings.for_tests(**settings), "proposer", node, FakeDirectory()))
        await node.spawn(made, "proposer")
        return node

    async def _until_asked(self) -> None:
        """Sockets connect when they do, and the mock may be done before: run requests until one was asked about."""
        assert self.target._steps is not None
        advised: Any = self.target._steps._drafts
        drafts = advised.line
        asked = drafts.link.asked
        while drafts.link.asked == asked:
            self.warming.append(await self.generate(request(max_tokens=20, method="ngram")))

    async def loaded(self) -> None:
        await until(lambda: self.target.ready() != ["loading model"])

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
    target = WorkerActor(around, runner, end_process=exits.append)
    await node.spawn(target, "worker")
    client = Node(ZmqTransport(), mesh_codec(), name="client")
    await client.start()
    mesh = MeshAround(
        folder, target, node, client, client.ref(node.endpoint, "worker"), directory, around.registry, exits
    )
    try:
        await mesh.loaded()
        yield mesh
    finally:
        for each in [client, node, *mesh.nodes]:
            await each.stop(5.0)


def request(
    prompt: list[int] | None = None,
    *,
    name: str = "r",
    attempt: int = 1,
    so_far: list[int] | None = None,
    method: str = "",
    drafts: int = -1,
    strategy: str = "",
    **sampling: Any,
) -> Generate:
    prompt = prompt or [100, 101, 102, 103]
    return Generate(
        request_id=name,
        attempt=attempt,
        token_ids=[*prompt, *(so_far or [])],
        prompt_tokens=len(prompt),
        sampling=Sampling(**sampling),
        speculation=Speculation(method=method, num_speculative_tokens=drafts, verify_strategy=strategy),
    )


async def all_of(mesh: MeshAround, requests: list[Generate]) -> list[Answer]:
    return list(await asyncio.gather(*(mesh.generate(each) for each in requests)))
