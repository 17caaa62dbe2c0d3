"""For simulation.py: the real proposer behind a network that may be bad (mesh/transport/memory_wire.py), and the real
link to it, with its envelopes and the codec. Whatever happens follows from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from mesh_doubles.clock import FakeClock, SteppedClock
from mesh_doubles.memory_wire import Air, FarEnd, MemoryWire
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from simulation import READ, SEND, THINK

from mesh.actor import Call
from mesh.blocking import BlockingLink
from mesh.codec import Codec
from services.api.drafts import PlacedDraft, pack, unpack
from services.api.messages import KINDS, Propose, Proposed
from services.api.settings import Settings
from services.proposer.actor import ProposerActor

CODEC = Codec(KINDS)
Lie = Callable[[random.Random, PlacedDraft], list[PlacedDraft]]


def honest(chance: random.Random, placed: PlacedDraft) -> list[PlacedDraft]:
    return [placed]


class Nobody:
    """A directory."""

    def on_change(self, callback: Callable[[], None]) -> None: ...


Answering = Callable[[Any], tuple[Any, float] | None]


def proposer(lie: Lie, chance: random.Random, settings: dict[str, Any]) -> tuple[ProposerActor, Answering]:
    """The real one, without its process: all that a node would do to it is done here."""
    context: Any = SimpleNamespace(
        settings=Settings.for_tests(method="auto", **settings),
        registry=CollectorRegistry(),
        clock=FakeClock(),
        directory=Nobody(),
    )
    actor = ProposerActor(context)

    def answering(message: Any) -> tuple[Any, float] | None:
        # Damaged bytes may be another message of the table.
        if not isinstance(message, Propose):
            return None
        call = Call("t", 1, 1.0, actor._clock)
        answer: Proposed = actor.propose(message, call)
        said = [each for placed in unpack(answer.drafts) for each in lie(chance, placed)]
        return replace(answer, drafts=pack(said)), THINK

    return actor, answering


class World:
    """The network and who is at its end; `dies_every`: requests after which the proposer starts anew;
    `settings`: the proposer's."""

    def __init__(
        self, seed: int, faults: dict[str, float], lie: Lie = honest, dies_every: int = 0, **settings: Any
    ) -> None:
        self._seed, self._faults, self._lie, self._dies_every = seed, faults, lie, dies_every
        self._settings = settings
        self._asked = 0
        self._actors: list[ProposerActor] = []
        self.air: Air | None = None

    def connect(self, clock: SteppedClock) -> BlockingLink:
        chance = random.Random(self._seed)
        self.air = Air(clock, self._seed, **self._faults)

        def alive() -> Answering:
            actor, answering = proposer(self._lie, chance, self._settings)
            self._actors.append(actor)
            return answering

        def answering(message: Any) -> tuple[Any, float] | None:
            self._asked += 1
            if self._dies_every and self._asked % self._dies_every == 0:
                far.restart(answering)
                self.life = alive()
                return None
            return self.life(message)

        self.life = alive()
        far = FarEnd(self.air, CODEC, answering)
        wire = MemoryWire(self.air, far, sending=SEND, reading=READ)
        return BlockingLink("ipc://far", "proposer", CODEC, "worker-1", 7, wire=wire)

    @property
    def lives(self) -> int:
        return len(self._actors)

    def close(self) -> None:
        for actor in self._actors:
            actor._index.close()
