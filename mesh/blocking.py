"""A synchronous client for a plain thread: its own socket, the same envelopes, no event loop.

Not thread-safe: one link, one thread. Every message starts with a Hello, so a restarted peer is met at the first ask.
Nothing is sent without a connection, and a new connection starts with an empty queue, so nothing old reaches a
successor. Tests use another wire than a socket: tests/mesh_doubles/memory_wire.py.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from typing import Any, Protocol

from mesh.address import check_name, routing_id
from mesh.codec import Codec
from mesh.envelope import (
    BLOCKING,
    AskRecord,
    Cancel,
    Failure,
    Farewell,
    Hello,
    MeshRecord,
    Reply,
    decode_for_dialler,
    encode_bundle,
    raw_frames,
)
from mesh.epoch import new_epoch
from mesh.errors import Busy, DeadlineExceeded, Malformed, MeshError, PeerLost, Stale, from_wire
from mesh.metrics import BusMetrics
from mesh.security import FolderSecurity
from mesh.transport import Frame, MessageLimits
from mesh.transport.zmq_wire import ZmqWire

# Asks sent and not yet received or given up.
MAX_TICKETS = 1024
Answer = tuple[str, bytes, Sequence[Frame]] | MeshError
_numbers = itertools.count(1)


class Ticket:
    """An ask that was sent."""

    __slots__ = ("id", "kind", "sent_at")

    def __init__(self, id: int, kind: str, sent_at: float) -> None:
        self.id = id
        self.kind = kind
        self.sent_at = sent_at


class Wire(Protocol):
    """A connection to the far side, and the clock to wait by."""

    def send(self, frames: Sequence[Frame]) -> bool:
        """Without waiting. False: there is no connection, or it is full."""
        ...

    def receive(self, timeout: float) -> Sequence[bytes] | None:
        """The next message, waited for; None when none came."""
        ...

    def wait_until_open(self, timeout: float) -> bool: ...
    def now(self) -> float: ...
    def close(self) -> None: ...


class BlockingLink:
    """One wire to one actor."""

    def __init__(
        self,
        endpoint: str,
        actor: str,
        codec: Codec,
        name: str,
        epoch: int | None = None,
        keys: FolderSecurity | None = None,
        *,
        limits: MessageLimits | None = None,
        metrics: BusMetrics | None = None,
        wire: Wire | None = None,
    ) -> None:
        """`name` and `epoch` are those of the node the thread belongs to. Without an epoch the link has a name of its
        own: a newer epoch of the same name would mean that the node has restarted. `codec` is forked: the caller may go
        on using it in another thread. Raises Insecure.
        """
        self.endpoint = endpoint
        self.actor = actor
        self.metrics = metrics or BusMetrics()
        self._codec = codec.fork()
        number = next(_numbers)
        self._name = check_name(name if epoch is not None else f"{name}.link-{os.getpid()}-{number}")
        self._epoch = new_epoch() if epoch is None else epoch
        self._peer_epoch = 0
        self._next_id = 0
        self._closed = False
        self._waiting: dict[int, Answer | None] = {}
        self._hello = Hello(self._name, self._epoch, BLOCKING)
        identity = routing_id(self._name, self._epoch, number, "b")
        self._wire: Wire = wire or ZmqWire(endpoint, identity, keys, limits or MessageLimits())

    def ask(self, message: Any, timeout: float) -> Any:
        """The answer. Raises DeadlineExceeded, PeerLost, or what the far side says."""
        until = self._wire.now() + timeout
        try:
            ticket = self.send(message, timeout=timeout)
        except PeerLost:
            # The first ask comes before the connection.
            if not self._wire.wait_until_open(timeout):
                raise
            ticket = self.send(message, timeout=timeout)
        return self.receive(ticket, timeout=until - self._wire.now())

    def send(self, message: Any, *, timeout: float = 1.0) -> Ticket:
        """The first half of `ask`; never waits. `timeout` is what the far side may take.

        Raises PeerLost when there is no connection (or it is full), Busy when too many tickets are out.
        """
        if len(self._waiting) >= MAX_TICKETS:
            raise Busy(f"{MAX_TICKETS} asks are waiting already")
        kind, body, raw = self._codec.encode(message)
        self._next_id += 1
        ticket = Ticket(self._next_id, kind, self._wire.now())
        deadline_ms = max(1, math.ceil(timeout * 1000))
        ask = AskRecord(ticket.id, self.actor, kind, deadline_ms, body, len(raw))
        if not self._send([self._hello, ask], raw):
            raise PeerLost(f"no connection to {self.endpoint}")
        self.metrics.sent(kind, len(body))
        self._waiting[ticket.id] = None
        return ticket

    def arrived(self, ticket: Ticket, timeout: float) -> bool:
        """Whether `receive` would return or raise at once, after waiting at most `timeout`. The ticket stays valid."""
        until = self._wire.now() + timeout
        while self._waiting.get(ticket.id, self) is None:
            left = until - self._wire.now()
            if not self._read(max(0.0, left)) and left <= 0:
                return False
        return True

    def receive(self, ticket: Ticket, timeout: float) -> Any:
        """The second half of `ask`. After DeadlineExceeded the ticket is void and its late reply dropped."""
        until = self._wire.now() + timeout
        if ticket.id not in self._waiting:
            raise DeadlineExceeded("this ticket has been received or given up")
        try:
            while (answer := self._waiting[ticket.id]) is None:
                left = until - self._wire.now()
                if not self._read(max(0.0, left)) and left <= 0:
                    self._send([Cancel([ticket.id])])
                    raise DeadlineExceeded(f"no answer from {self.endpoint} within {timeout:g} s")
        finally:
            del self._waiting[ticket.id]
        self.metrics.round_trip(ticket.kind, self._wire.now() - ticket.sent_at)
        if isinstance(answer, MeshError):
            raise answer
        try:
            return self._codec.decode(*answer) if answer[0] else None
        except MeshError as error:
            self.metrics.refuse(error.reason)
            raise

    def give_up(self, ticket: Ticket) -> None:
        """Wait for this answer no longer; the far handler is cancelled. Repeat-safe."""
        if self._waiting.pop(ticket.id, ticket) is None:
            self._send([Cancel([ticket.id])])

    def close(self) -> None:
        """Repeat-safe."""
        if not self._closed:
            self._closed = True
            self._send([Farewell()])
            self._wire.close()

    def _send(self, records: list[MeshRecord], raw: Sequence[Frame] = ()) -> bool:
        if not self._wire.send(encode_bundle(self._epoch, 0, records, raw)):
            return False
        self.metrics.bundles["sent"] += 1
        return True

    def _read(self, timeout: float) -> bool:
        """Take one message, waiting for it; False when none came."""
        frames = self._wire.receive(timeout)
        if frames is None:
            return False
        self.metrics.bundles["received"] += 1
        try:
            bundle = decode_for_dialler(frames)
            raw = raw_frames(bundle.records, frames) if len(frames) > 1 else {}
        except Malformed:
            self.metrics.refuse("malformed")
            return True
        if bundle.to_epoch != self._epoch or bundle.epoch < self._peer_epoch:
            self.metrics.drop("stale_epoch")
            return True
        if bundle.epoch > self._peer_epoch:
            if self._peer_epoch:
                self._fail_all(PeerLost(f"{self.endpoint} has restarted"), but=_answered(bundle.records))
            self._peer_epoch = bundle.epoch
        for position, record in enumerate(bundle.records):
            if type(record) is Reply:
                self._answer(record.id, (record.kind, record.body, raw.get(position, ())))
            elif isinstance(record, Failure):
                self._answer(record.id, from_wire(record.reason[:200], record.message[:2000]))
            elif isinstance(record, Farewell):
                self._fail_all(self._farewell(record), but=set())
        return True

    def _farewell(self, record: Farewell) -> MeshError:
        if record.reason == Stale.reason:
            return Stale(f"{self.endpoint} knows a newer epoch of {self._name}")
        return PeerLost(f"{self.endpoint} has left")

    def _answer(self, id: int, answer: Answer) -> None:
        if id in self._waiting and self._waiting[id] is None:
            self._waiting[id] = answer
        else:
            self.metrics.drop("late_answer")

    def _fail_all(self, error: MeshError, but: set[int]) -> None:
        for id, answer in self._waiting.items():
            if answer is None and id not in but:
                self._waiting[id] = error


def _answered(records: Sequence[Any]) -> set[int]:
    return {record.id for record in records if isinstance(record, Reply | Failure)}
