"""A prefill worker and a decode worker on ipc in one process, around runners whose text depends on what pages hold."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from mesh_around import Answer, context, until
from paged_fake import PagedFake

from mesh.directory.membership import Member
from mesh.node import Node
from mesh.ref import Ref
from mesh.transport.zmq import ZmqTransport
from services.api.messages import Generate
from services.api.settings import Settings
from services.runtime.process import mesh_codec
from services.worker.actor import WorkerActor
from services.worker.handover.handover import Handover
from services.worker.handover.transport import HandoverCounts
from services.worker.running.work import Work
from services.worker.scheduling.scheduler import Scheduler

PLACE = struct.Struct("<?qq")


class FakePages:
    """The pages of a PagedFake, as bytes."""

    def __init__(self, fake: HandingFake) -> None:
        self._fake = fake
        size = fake.facts.page_tokens
        self.layout = f"fake {size}"
        self.frame_bytes = (PLACE.size * (size - 1), PLACE.size)

    def read(self, pages: Sequence[int]) -> list[list[bytes]]:
        return [self._frames(page) for page in pages]

    def _frames(self, page: int) -> list[bytes]:
        places = self._fake._pages[page]
        found = [PLACE.pack(True, *place[1:]) if place else PLACE.pack(False, 0, 0) for place in places]
        return [b"".join(found[:-1]), found[-1]]

    def write(self, page: int, frames: Sequence[bytes]) -> None:
        self._fake.landed += 1
        places = PLACE.iter_unpack(b"".join(frames))
        self._fake._pages[page] = [("", value, token) if there else None for there, value, token in places]


class HandingFake(PagedFake):
    """`before` is called with each step's work, in the thread that computes."""

    drafters = ()
    grammars = None
    elsewhere = feeds = False

    def __init__(self, pages: int = 64, context: int = 200, before: Callable[[Work], None] | None = None) -> None:
        super().__init__(pages, 4, context)
        self.landed = 0
        self._before = before or (lambda work: None)

    def launch(self, work: Work) -> None:
        self._before(work)
        super().launch(work)

    def page_memory(self) -> FakePages:
        return FakePages(self)

    def counts(self) -> dict[str, int]:
        return {}


class Table:
    """The directory, as the test says it is."""

    def __init__(self) -> None:
        self.workers: dict[str, Member] = {}

    def on_change(self, callback: Callable[[], None]) -> None: ...

    def members(self, role: str | None = None) -> list[Member]:
        return list(self.workers.values())

    def ready(self, role: str) -> list[Any]:
        return []

    async def stop(self) -> None: ...


class Worker:
    def __init__(self, actor: WorkerActor, node: Node, ref: Ref, runner: Any) -> None:
        self.actor, self.node, self.ref, self.runner = actor, node, ref, runner

    @property
    def scheduler(self) -> Scheduler:
        assert self.actor._engine is not None
        return self.actor._engine.scheduler

    @property
    def handover(self) -> Handover:
        assert self.actor._handover is not None
        return self.actor._handover

    @property
    def counts(self) -> HandoverCounts:
        return self.handover.counts

    async def until_idle(self) -> None:
        """Nothing runs, nothing is lent, and no page is in use: law 5."""
        await until(lambda: not self.actor.load() and not self.handover.lending)
        await until(lambda: not self.scheduler.has_work and self.scheduler.pages.in_use == 0)
        self.scheduler.pages.check()


class Split:
    def __init__(self, folder: Path, client: Node) -> None:
        self.table = Table()
        self.workers: dict[str, Worker] = {}
        self._folder, self._client = folder, client

    def __getattr__(self, name: str) -> Worker:
        return self.workers[name]

    async def start(self, instance: str, phase: str, runner: Any = None, **settings: Any) -> Worker:
        given = {"engine": "mock", "method": "naive", "handover_min_tokens": 1, "max_step_tokens": 16, **settings}
        chosen = Settings.for_tests(**given, phase=phase, run_dir=str(self._folder))
        node = Node(ZmqTransport(), mesh_codec(), name=instance)
        await node.start(f"ipc://{self._folder}/{instance}")
        around = context(chosen, "worker", node, self.table)
        around.instance = instance
        runner = runner or HandingFake()
        actor = WorkerActor(around, runner, end_process=lambda code: None)
        await node.spawn(actor, "worker")
        await until(lambda: not actor.ready())
        worker = self.workers[instance] = Worker(actor, node, self._client.ref(node.endpoint, "worker"), runner)
        self.say(instance, "ready")
        return worker

    def say(self, instance: str, state: Any, epoch: int | None = None) -> None:
        """What the directory knows of this worker."""
        worker = self.workers[instance]
        self.table.workers[instance] = Member(
            "worker", instance, worker.node.endpoint, worker.node.epoch if epoch is None else epoch, state,
            phase=worker.actor.phase,
        )  # fmt: skip

    async def ask(self, generate: Generate, at: str = "decode", pages_from: str = "prefill") -> Answer:
        answer = Answer()
        sent = msgspec.structs.replace(generate, pages_from=pages_from)
        async with self.workers[at].ref.stream(sent, timeout=60.0) as stream:
            async for item in stream:
                answer.items.append(item)
        return answer


@asynccontextmanager
async def split(folder: Path, start: bool = True, **settings: Any) -> AsyncIterator[Split]:
    client = Node(ZmqTransport(), mesh_codec(), name="client")
    await client.start()
    mesh = Split(folder, client)
    try:
        if start:
            await mesh.start("prefill", "prefill", **settings)
            await mesh.start("decode", "decode", **settings)
        yield mesh
    finally:
        for node in (client, *(worker.node for worker in mesh.workers.values())):
            await node.stop(5.0)
