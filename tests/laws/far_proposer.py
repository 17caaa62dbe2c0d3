"""For simulation.py: the real proposer on a real node behind a network that may be bad (tests/mesh_doubles/memory.py),
and the real link to it, with its node, its envelopes and the codec. Whatever happens follows from a seed.

There is one thread. The event loop runs while the engine sends, looks or waits; what was due meanwhile happens then, in
order and at its own time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

from mesh_doubles.clock import FakeClock, SteppedClock
from mesh_doubles.memory import MemoryNetwork
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from simulation import READ, SEND, THINK

from mesh.actor import Actor, Call
from mesh.codec import Codec
from mesh.node import Node
from services.api.drafts import PlacedDraft, pack, unpack
from services.api.messages import KINDS, Propose, Proposed
from services.api.settings import Settings
from services.proposer.actor import ProposerActor
from services.worker.speculation.remote.link import LoopLink, Ticket

CODEC = Codec(KINDS)
ENDPOINT = "mem://far"
Lie = Callable[[random.Random, PlacedDraft], list[PlacedDraft]]


def honest(chance: random.Random, placed: PlacedDraft) -> list[PlacedDraft]:
    return [placed]


class Nobody:
    """A directory."""

    def on_change(self, callback: Callable[[], None]) -> None: ...


class FarProposer(Actor):
    """Answers late and wrongly. After a fixed number of requests it dies, and another takes its place."""

    handlers: ClassVar = {Propose: "propose"}

    def __init__(self, world: World) -> None:
        self._world = world

    async def propose(self, message: Propose, call: Call) -> Proposed:
        answer = self._world.answer(message, call)
        await self.node.clock.sleep(THINK)
        return answer


class SteppedLink(LoopLink):
    """A LoopLink whose thread is the event loop's, too."""

    def __init__(self, world: World, node: Node) -> None:
        self._world = world
        super().__init__(node, ENDPOINT, "proposer", self._call)

    def _call(self, what: Callable[..., None], *arguments: Any) -> None:
        """Now, not at the time of what was due before."""
        self._world.catch_up()
        self._world.loop.call_soon(what, *arguments)
        self._world.catch_up()

    def send(self, message: Any) -> Ticket:
        self._world.clock.sleep(SEND)
        return super().send(message)

    def arrived(self, ticket: Ticket) -> bool:
        self._world.catch_up()
        return super().arrived(ticket)

    def receive(self, ticket: Ticket, timeout: float) -> Any:
        self._world.wait(ticket.arrived.is_set, timeout)
        self._world.clock.sleep(READ)
        return super().receive(ticket, 0.0)


class World:
    """The network and who is at its end; `dies_every`: requests after which the proposer starts anew;
    `settings`: the proposer's."""

    def __init__(
        self, seed: int, faults: dict[str, float], lie: Lie = honest, dies_every: int = 0, **settings: Any
    ) -> None:
        self._chance, self._lie, self._dies_every = random.Random(seed), lie, dies_every
        self._settings = Settings.for_tests(method="auto", **settings)
        self._asked = 0
        self._actors: list[ProposerActor] = []
        self._time = FakeClock()
        self.network = MemoryNetwork(seed, clock=self._time, **faults)
        self.loop = asyncio.new_event_loop()

    def connect(self, clock: SteppedClock) -> SteppedLink:
        self.clock = clock
        return SteppedLink(self, self.loop.run_until_complete(self._nodes()))

    async def _nodes(self) -> Node:
        self._start()
        self._far, near = (Node(self.network.transport(), CODEC, name=n, clock=self._time, epoch=7) for n in "fn")
        await self._far.start(ENDPOINT)
        await self._far.spawn(FarProposer(self), "proposer")
        await near.start()
        return near

    def _start(self) -> None:
        context: Any = SimpleNamespace(
            settings=self._settings, registry=CollectorRegistry(), clock=FakeClock(), directory=Nobody()
        )
        self._actors.append(ProposerActor(context))

    def answer(self, message: Propose, call: Call) -> Proposed:
        self._asked += 1
        if self._dies_every and self._asked % self._dies_every == 0:
            self._far.take_epoch(self._far.epoch + 1)
            self.network.cut(ENDPOINT)
            self.network.mend(ENDPOINT)
            self._start()
        answer: Proposed = self._actors[-1].propose(message, call)
        said = [each for placed in unpack(answer.drafts) for each in self._lie(self._chance, placed)]
        return replace(answer, drafts=pack(said))

    def catch_up(self) -> None:
        """What was due by now happens."""
        self.loop.run_until_complete(self._time.advance(self.clock.now - self._time.now()))

    def wait(self, done: Callable[[], bool], timeout: float) -> None:
        """Until then, or for so long."""
        until = self.clock.now + timeout
        self.catch_up()
        self.loop.run_until_complete(self._time.advance_to(until, done))
        self.clock.now = max(self.clock.now, self._time.now())

    @property
    def lives(self) -> int:
        return len(self._actors)

    def close(self) -> None:
        for actor in self._actors:
            actor._index.close()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
