"""A dialler as its acceptor sees it: the calls it makes here and the streams written for it.

One connection, one session. When the connection ends the session is over: its handlers are cancelled. Knows records
and actors' cells; sends through the node by routing id, and knows no sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from mesh.actor import Call, Home
from mesh.cell import Cell
from mesh.envelope import (
    AcceptorBundle,
    AskRecord,
    Cancel,
    Credit,
    End,
    Failure,
    Farewell,
    Hello,
    MeshRecord,
    Open,
    Reply,
    ToAcceptor,
    Welcome,
    raw_frames,
)
from mesh.errors import Busy, Malformed, MeshError, PeerLost, to_wire
from mesh.mailbox import Mail
from mesh.outbox import Outbox
from mesh.stream import ITEM_WEIGHT, StreamWriter
from mesh.transport import Frame, Sent

# What an answer costs beside its body.
RECORD_WEIGHT = 32
MAX_WRITERS = 4096
# Upper bounds of what a peer may ask for: bytes in flight per stream and in all, and time.
MAX_WINDOW = 4 * 1024 * 1024
PEER_WINDOWS = 256 * 1024 * 1024
MAX_DEADLINE_MS = 30 * 86400 * 1000


def weight_of_call(body: bytes, raw: Sequence[Frame]) -> int:
    return len(body) + RECORD_WEIGHT + sum(map(len, raw))


class AcceptingNode(Home, Protocol):
    """What the peer needs of its node (mesh/node.py)."""

    def cell(self, name: str) -> Cell:
        """Raises NotRunning or Draining."""
        ...

    def reply(self, identity: bytes, frames: Sequence[Frame]) -> Sent: ...

    def farewell_from(self, peer: AcceptedPeer) -> None: ...

    def lose(self, peer: AcceptedPeer, error: MeshError) -> None: ...


class AcceptedPeer:
    """One session. `number` tells the dialler whether it still talks to the state it remembers."""

    def __init__(self, node: AcceptingNode, routing_id: bytes, hello: Hello, number: int) -> None:
        self.routing_id = routing_id
        self.name = hello.name
        self.epoch = hello.epoch
        self.heard = node.clock.now()
        self.left = False  # it has said Farewell
        self.calls: dict[int, Mail] = {}
        self.writers: dict[int, StreamWriter] = {}
        self._granted = 0  # bytes of window all its streams have together
        self._last_id = 0
        self._welcome_due = False
        self._node = node
        self._metrics = node.metrics
        self._welcome = Welcome(node.name, node.epoch, number)
        self.outbox = Outbox(node.epoch, partial(node.reply, routing_id), self._control, self._unreachable)
        self.outbox.to_epoch = hello.epoch

    @property
    def busy(self) -> bool:
        return bool(self.calls or self.writers)

    def welcome(self) -> None:
        """Answer a Hello, or find out whether the dialler is still connected: a send to one that isn't fails."""
        self._welcome_due = True
        self.outbox.schedule()

    def received(self, bundle: AcceptorBundle, frames: Sequence[bytes]) -> None:
        """All records of a bundle whose epochs have been checked. Raises Malformed."""
        self.heard = self._node.clock.now()
        raw = raw_frames(bundle.records, frames) if len(frames) > 1 else {}
        answered = False
        for position, record in enumerate(bundle.records):
            answered |= self._take(record, raw.get(position, ()))
            if self.outbox.closed:
                return
        if answered:
            # Someone waits for it: don't wait for the end of the tick.
            self.outbox.flush()

    def lost(self, error: MeshError) -> None:
        """The session is over: everything it runs is cancelled."""
        writers, self.writers, self._granted = self.writers, {}, 0
        for writer in writers.values():
            writer.fail(error)
        calls, self.calls = self.calls, {}
        for mail in calls.values():
            mail.revoke(error)
        self.outbox.close()

    def farewell(self) -> None:
        self.outbox.put(Farewell(), 0, reserve=2)
        self.outbox.flush()

    # Records ---------------------------------------------------------------------------------------------

    def _take(self, record: ToAcceptor, raw: Sequence[bytes]) -> bool:
        """True when an answer is in the outbox already."""
        if isinstance(record, AskRecord | Open):
            # Ids grow, so a copy of a call, or one that comes too late, is never started.
            if record.id <= self._last_id:
                self._metrics.drop("duplicate_call")
                return False
            self._last_id = record.id
            self._metrics.received(self._node.codec.known(record.kind), len(record.body))
            if isinstance(record, AskRecord):
                return self._ask(record, raw)
            self._open(record, raw)
        elif isinstance(record, Credit):
            self._credit(record.numbers)
        elif isinstance(record, Cancel):
            self._cancel(record.ids)
        elif isinstance(record, Farewell):
            self.left = True
            self._node.farewell_from(self)
        return False

    def _ask(self, record: AskRecord, raw: Sequence[bytes]) -> bool:
        call = self._call(record)
        try:
            cell = self._node.cell(record.actor)
            if record.kind not in cell.answers:
                mail = self.calls[record.id] = Mail(self, record.id, record.kind, record.body, raw, call)
                cell.deliver(mail)
                return False
        except MeshError as error:
            self._metrics.refuse(error.reason)
            self.calls.pop(record.id, None)
            self._fail(record.id, error)
            return False
        try:
            self._reply(record.id, cell.answer(record.kind, record.body, raw, call))
        except Exception as error:
            self._fail(record.id, error)
        return True

    def _open(self, record: Open, raw: Sequence[bytes]) -> None:
        id, node = record.id, self._node
        window = min(record.window, MAX_WINDOW)
        if len(self.writers) >= MAX_WRITERS or self._granted + window > PEER_WINDOWS:
            self._metrics.refuse("busy")
            self.put_last(End(id, 1, *to_wire(Busy("too many streams for one peer"))))
            return
        writer = self.writers[id] = StreamWriter(self, id, window, node.codec, self._metrics)
        self._granted += writer.granted
        mail = Mail(self, id, record.kind, record.body, raw, self._call(record))
        try:
            node.cell(record.actor).open(mail, writer)
            self.calls[id] = mail
        except MeshError as error:
            self._metrics.refuse(error.reason)
            writer.finish(*to_wire(error))

    def _call(self, record: AskRecord | Open) -> Call:
        deadline = self.heard + min(max(0, record.deadline_ms), MAX_DEADLINE_MS) / 1000
        return Call(self.name, self.epoch, deadline, self._node.clock)

    def _credit(self, numbers: list[int]) -> None:
        if len(numbers) % 2:
            raise Malformed("credits come in pairs")
        for id, consumed in zip(numbers[::2], numbers[1::2], strict=True):
            writer = self.writers.get(id)
            if writer is not None:
                writer.credited(consumed)

    def _cancel(self, ids: list[int]) -> None:
        for id in ids:
            writer = self.forget_writer(id)
            if writer is not None:
                writer.fail(PeerLost("the caller has left the stream"))
            mail = self.calls.pop(id, None)
            if mail is not None:
                mail.revoke(PeerLost("the caller has cancelled"))

    # Called by cells and writers -----------------------------------------------------------------------

    def reply(self, id: int, result: Any) -> None:
        if self.calls.pop(id, None) is not None:
            self._reply(id, result)

    def fail_call(self, id: int, error: BaseException) -> None:
        if self.calls.pop(id, None) is not None:
            self._fail(id, error)

    def forget_call(self, id: int) -> None:
        self.calls.pop(id, None)

    def forget_writer(self, id: int) -> StreamWriter | None:
        writer = self.writers.pop(id, None)
        if writer is not None:
            self._granted -= writer.granted
        return writer

    def put_last(self, record: End | Failure | Reply, weight: int = ITEM_WEIGHT, raw: Sequence[Frame] = ()) -> bool:
        """The last record of a call. A dialler that leaves no room for it doesn't read: it is given up, and learns so
        from the session number of the next Welcome."""
        if not self.outbox.put(record, weight, raw, reserve=2) and not self.outbox.closed:
            self._metrics.drop("answer_without_room")
            self._node.lose(self, PeerLost(f"{self.name} does not read"))
            return False
        return True

    def _reply(self, id: int, result: Any) -> None:
        try:
            # A handler that returns None only says that it is done.
            kind, body, raw = self._node.codec.encode(result) if result is not None else ("", b"", ())
        except MeshError as error:
            self._metrics.refuse(error.reason)
            self._fail(id, error)
            return
        weight = weight_of_call(body, raw)
        if self.put_last(Reply(id, kind, body, len(raw)), weight, raw):
            self._metrics.sent(kind or "done", weight)

    def _fail(self, id: int, error: BaseException) -> None:
        self.put_last(Failure(id, *to_wire(error)), RECORD_WEIGHT)

    # Called by the outbox --------------------------------------------------------------------------------

    def _control(self) -> list[MeshRecord]:
        if not self._welcome_due:
            return []
        self._welcome_due = False
        return [self._welcome]

    def _unreachable(self) -> None:
        self._node.lose(self, PeerLost(f"{self.name} is gone"))
