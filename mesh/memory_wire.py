"""A blocking link's wire without sockets, threads or an event loop: in one thread, in simulated time, with faults that
are repeatable by seed. What memory_transport.py is for nodes.

    BlockingLink ─ MemoryWire ─ frames ─▶ Air ─ late, lost, twice, out of order, damaged ─▶ FarEnd ─ message ─▶ answer
                       ▲                                                                       │
                       └───────────────────────────────────────────────────────────────────────┘

Time passes only while somebody waits, or says that something took him so long. What arrived meanwhile is seen to
afterwards, in its order and as of its moment. Knows frames, records and chance; what is asked is the codec's business.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mesh.codec import Codec
from mesh.envelope import (
    Ask,
    Failure,
    Hello,
    Record,
    Reply,
    Welcome,
    decode_for_acceptor,
    encode_bundle,
    raw_frames,
)
from mesh.errors import Malformed, MeshError, Refuse
from mesh.session import SeenIds
from mesh.transport import Frame


class SteppedClock(Protocol):
    """Moved by who waits."""

    def __call__(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class Air:
    """Between a wire and its far end. Probabilities are per message; delays in seconds.

    drop: it never arrives. duplicate: it arrives twice. reorder: it arrives up to `jitter` later than others sent after
    it. damage: some of its bytes are others, or it is cut, or something is behind it.
    """

    def __init__(
        self,
        clock: SteppedClock,
        seed: int = 0,
        *,
        delay: float = 0.0,
        drop: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        damage: float = 0.0,
        jitter: float = 0.01,
    ) -> None:
        self.clock = clock
        self.delay, self.drop, self.duplicate = delay, drop, duplicate
        self.reorder, self.damage, self.jitter = reorder, damage, jitter
        # Nobody is at the other end, and a wire notices.
        self.cut = False
        self.carried = self.dropped = self.damaged = 0
        self._chance = random.Random(seed)
        self._arrivals: list[tuple[float, int, Callable[[list[bytes]], None], list[bytes]]] = []
        self._order = itertools.count()
        # While something arrives: when that was.
        self._moment: float | None = None

    def carry(self, frames: Sequence[Frame], arrive: Callable[[list[bytes]], None], after: float = 0.0) -> None:
        """They go on their way in `after` seconds from now."""
        chance = self._chance
        leaves = after + (self.clock() if self._moment is None else self._moment)
        if chance.random() < self.drop:
            self.dropped += 1
            return
        for _ in range(2 if chance.random() < self.duplicate else 1):
            late = self.delay + (chance.uniform(0.0, self.jitter) if chance.random() < self.reorder else 0.0)
            copy = [bytes(frame) for frame in frames]
            if chance.random() < self.damage:
                self.damaged += 1
                copy[0] = self._damaged(copy[0])
            heapq.heappush(self._arrivals, (leaves + late, next(self._order), arrive, copy))

    def _damaged(self, data: bytes) -> bytes:
        chance, way = self._chance, self._chance.randrange(3)
        if way == 0:
            return data[: chance.randrange(len(data) + 1)]
        if way == 1:
            return data + chance.randbytes(chance.randint(1, 64))
        found = bytearray(data)
        for _ in range(chance.randint(1, 8) if found else 0):
            found[chance.randrange(len(found))] = chance.randrange(256)
        return bytes(found)

    def settle(self) -> None:
        """What is due by now arrives."""
        while self._arrivals and self._arrivals[0][0] <= self.clock():
            self._moment, _, arrive, frames = heapq.heappop(self._arrivals)
            self.carried += 1
            arrive(frames)
        self._moment = None

    def wait(self, until: float) -> bool:
        """For the next arrival, but no longer than that. Whether there was one."""
        now = self.clock()
        if not self._arrivals or self._arrivals[0][0] > until:
            self.clock.sleep(max(0.0, until - now))
            return False
        self.clock.sleep(max(0.0, self._arrivals[0][0] - now))
        self.settle()
        return True


# Of a message the answer, and the seconds it takes; None: there never is one. May raise Refuse.
Answering = Callable[[Any], tuple[Any, float] | None]


class FarEnd:
    """An actor that is asked: what a node does with asks, and no more."""

    def __init__(self, air: Air, codec: Codec, answering: Answering, name: str = "far-end", epoch: int = 1) -> None:
        self.epoch = epoch
        self.malformed = 0
        self._air, self._codec, self._answering, self._name = air, codec.fork(), answering, name
        self._seen = SeenIds()

    def restart(self, answering: Answering) -> None:
        """Another process in its place: a new epoch, and nothing is known of what came before."""
        self.epoch += 1
        self._answering = answering
        self._seen = SeenIds()

    def arrived(self, frames: list[bytes], back: Callable[[list[bytes]], None]) -> None:
        try:
            bundle = decode_for_acceptor(frames)
            raw = raw_frames(bundle.records, frames)
        except Malformed:
            self.malformed += 1
            return
        for position, record in enumerate(bundle.records):
            if isinstance(record, Hello):
                self._say(bundle.epoch, Welcome(self._name, self.epoch, 1), back, 0.0)
            elif isinstance(record, Ask) and self._seen.first(record.id):
                self._answer(bundle.epoch, record, raw.get(position, ()), back)

    def _answer(self, asker: int, ask: Ask, raw: Sequence[bytes], back: Callable[[list[bytes]], None]) -> None:
        try:
            answer = self._answering(self._codec.decode(ask.kind, ask.body, raw))
        except (MeshError, Refuse) as error:
            self._say(asker, Failure(ask.id, error.reason, str(error)), back, 0.0)
            return
        if answer is not None:
            kind, body, _ = self._codec.encode(answer[0])
            self._say(asker, Reply(ask.id, kind, body), back, answer[1])

    def _say(self, asker: int, record: Record, back: Callable[[list[bytes]], None], after: float) -> None:
        self._air.carry(encode_bundle(self.epoch, asker, [record]), back, after)


class MemoryWire:
    """Implements mesh.blocking.Wire. `sending` and `reading` are what a message takes of the thread's time."""

    def __init__(self, air: Air, far: FarEnd, *, sending: float = 0.0, reading: float = 0.0) -> None:
        self._air, self._far = air, far
        self._sending, self._reading = sending, reading
        self._inbox: deque[list[bytes]] = deque()
        self._closed = False

    def now(self) -> float:
        return self._air.clock()

    def send(self, frames: Sequence[Frame]) -> bool:
        self._air.clock.sleep(self._sending)
        if self._air.cut or self._closed:
            return False
        self._air.carry(frames, lambda came: self._far.arrived(came, self._came_back))
        self._air.settle()
        return True

    def _came_back(self, frames: list[bytes]) -> None:
        if not self._closed:
            self._inbox.append(frames)

    def receive(self, timeout: float) -> Sequence[bytes] | None:
        until = self.now() + timeout
        self._air.settle()
        while not self._inbox:
            if not self._air.wait(until) and not self._inbox:
                return None
        self._air.clock.sleep(self._reading)
        return self._inbox.popleft()

    def wait_until_open(self, timeout: float) -> bool:
        if self._air.cut:
            self._air.clock.sleep(max(0.0, timeout))
        return not self._air.cut

    def close(self) -> None:
        self._closed = True
