"""The wire of a blocking link without sockets, threads or an event loop: one thread, simulated time, and faults that
are repeatable by seed. For blocking links what mesh/transport/memory.py is for nodes.

    BlockingLink ─ MemoryWire ─ frames ─▶ Air ─ late, lost, twice, out of order, damaged ─▶ FarEnd ─ message ─▶ answer
                       ▲                                                                       │
                       └───────────────────────────────────────────────────────────────────────┘

Time passes only while the thread waits, or when it says that something took time. What arrived meanwhile is handled
then, in order and at its own time. Knows frames and records; bodies are the codec's.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from mesh.codec import Codec
from mesh.envelope import (
    AskRecord,
    Failure,
    Hello,
    MeshRecord,
    Reply,
    Welcome,
    decode_for_acceptor,
    encode_bundle,
    raw_frames,
)
from mesh.errors import Malformed, MeshError, Refuse
from mesh.transport import Frame
from mesh_doubles.clock import SteppedClock
from mesh_doubles.faults import Faults


class Air(Faults):
    """Between a wire and its far end."""

    def __init__(self, clock: SteppedClock, seed: int = 0, **faults: float) -> None:
        """`faults` are those of tests/mesh_doubles/faults.py."""
        super().__init__(seed, **faults)
        self.clock = clock
        # There is no connection, and the wire notices.
        self.cut = False
        self._arrivals: list[tuple[float, int, Callable[[list[bytes]], None], list[bytes]]] = []
        self._order = itertools.count()
        # While something arrives: the time of its arrival.
        self._moment: float | None = None

    def carry(self, frames: Sequence[Frame], arrive: Callable[[list[bytes]], None], after: float = 0.0) -> None:
        """Sent in `after` seconds from now."""
        leaves = after + (self.clock() if self._moment is None else self._moment)
        for late, copy in self.arrivals(frames):
            heapq.heappush(self._arrivals, (leaves + late, next(self._order), arrive, copy))

    def settle(self) -> None:
        """What is due by now arrives."""
        while self._arrivals and self._arrivals[0][0] <= self.clock():
            self._moment, _, arrive, frames = heapq.heappop(self._arrivals)
            arrive(frames)
        self._moment = None

    def wait(self, until: float) -> bool:
        """For the next arrival, at most until then. Whether there was one."""
        now = self.clock()
        if not self._arrivals or self._arrivals[0][0] > until:
            self.clock.sleep(max(0.0, until - now))
            return False
        self.clock.sleep(max(0.0, self._arrivals[0][0] - now))
        self.settle()
        return True


# From a message to the answer and the seconds it takes; None: no answer. May raise Refuse.
Answering = Callable[[Any], tuple[Any, float] | None]


class FarEnd:
    """The asked actor: what a node does with asks, and no more."""

    def __init__(self, air: Air, codec: Codec, answering: Answering, name: str = "far-end", epoch: int = 1) -> None:
        self.epoch = epoch
        self.malformed = 0
        self._air, self._codec, self._answering, self._name = air, codec.fork(), answering, name
        self._seen: set[int] = set()

    def restart(self, answering: Answering) -> None:
        """Another process in its place: a new epoch that knows nothing of what came before."""
        self.epoch += 1
        self._answering = answering
        self._seen = set()

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
            elif isinstance(record, AskRecord) and record.id not in self._seen:
                self._seen.add(record.id)
                self._answer(bundle.epoch, record, raw.get(position, ()), back)

    def _answer(self, asker: int, ask: AskRecord, raw: Sequence[bytes], back: Callable[[list[bytes]], None]) -> None:
        try:
            answer = self._answering(self._codec.decode(ask.kind, ask.body, raw))
        except (MeshError, Refuse) as error:
            self._say(asker, Failure(ask.id, error.reason, str(error)), back, 0.0)
            return
        if answer is not None:
            kind, body, _ = self._codec.encode(answer[0])
            self._say(asker, Reply(ask.id, kind, body), back, answer[1])

    def _say(self, asker: int, record: MeshRecord, back: Callable[[list[bytes]], None], after: float) -> None:
        self._air.carry(encode_bundle(self.epoch, asker, [record]), back, after)


class MemoryWire:
    """Implements mesh.blocking.Wire. `sending` and `reading` are seconds of the thread's time per message."""

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
