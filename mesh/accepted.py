"""A dialler as seen by the node it called: its running calls, the streams written for it, the ids it used.

Knows records and actors' cells; sends through the door by routing id, and knows no sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mesh.actor import Call, Mail
from mesh.envelope import (
    BLOCKING,
    RESUME,
    AcceptorBundle,
    Acks,
    Ask,
    Cancel,
    End,
    Failure,
    Farewell,
    Gone,
    Hello,
    Open,
    Opened,
    Record,
    Reply,
    ReplyWithFrames,
    Tell,
    Welcome,
    raw_frames,
    with_frames,
)
from mesh.errors import Busy, Draining, Malformed, MeshError, NotRunning, PeerLost, to_wire
from mesh.outbox import Outbox
from mesh.session import SeenIds
from mesh.stream import ITEM_WEIGHT, StreamWriter

if TYPE_CHECKING:
    from mesh.node import Node

# What an answer costs beside its body.
RECORD_WEIGHT = 32
MAX_WRITERS = 4096
# What a peer may ask for at most: bytes a writer keeps for it, and time.
MAX_WINDOW = 4 * 1024 * 1024
PEER_WINDOWS = 256 * 1024 * 1024
MAX_DEADLINE_MS = 30 * 86400 * 1000
STOP = "mesh.stop"  # the one kind that is not the actor's own


class AcceptedPeer:
    """One session. `number` tells the dialler whether it still talks to the state it remembers."""

    def __init__(self, node: Node, routing_id: bytes, hello: Hello, number: int) -> None:
        self.routing_id = routing_id
        self.name = hello.name
        self.epoch = hello.epoch
        self.number = number
        self.blocking = bool(hello.flags & BLOCKING)
        self.heard = node.clock.now()
        self.gone_since: float | None = None
        self.left = False
        self.calls: dict[int, Mail] = {}
        self.writers: dict[int, StreamWriter] = {}
        self._granted = 0  # bytes of window all its streams have together
        self._node = node
        self._metrics = node.metrics
        self._seen = SeenIds()
        self._welcome_due = False
        self._opened: list[int] = []
        self._gone: list[int] = []
        self.outbox = Outbox(node.epoch, lambda frames: node.reply(routing_id, frames), self._urgent, self._unreachable)
        self.outbox.to_epoch = hello.epoch

    @property
    def busy(self) -> bool:
        return bool(self.calls or self.writers)

    def received(self, bundle: AcceptorBundle, frames: Sequence[bytes]) -> None:
        """Everything of one bundle, whose epochs have been checked. Raises Malformed."""
        self.heard = self._node.clock.now()
        self.gone_since = None
        raw = raw_frames(bundle.records, frames) if len(frames) > 1 else None
        answered = False
        for position, record in enumerate(bundle.records):
            given = raw.get(position, ()) if raw else ()
            if type(record) is Acks:
                self._acks(record.numbers)
            elif type(record) is Ask:
                answered |= self._ask(record, given)
            elif type(record) is Open:
                self._open(record, given)
            elif type(record) is Tell:
                self._tell(record, given)
            elif type(record) is Cancel:
                self._cancel(record.ids)
            elif type(record) is Farewell:
                self.left = True
                self._node.farewell_from(self)
            if self.outbox.closed:
                return
        if answered:
            # Somebody waits for it; the end of the tick is far for those who count in microseconds.
            self.outbox.flush()

    def greeted(self, hello: Hello) -> None:
        """The dialler said Hello, for the first time or to show that it lives."""
        self._welcome_due = True
        self.outbox.schedule()
        if hello.flags & RESUME:
            for writer in list(self.writers.values()):
                writer.resend()

    def lost(self, error: MeshError) -> None:
        """The session is over: everything it runs is cancelled."""
        self._drop_calls(error)
        self.outbox.close()

    def probe(self) -> None:
        """Say something, so that the transport finds out whether the dialler is still there."""
        self._welcome_due = True
        self.outbox.schedule()

    def farewell(self) -> None:
        self.outbox.put(Farewell(), 0)

    def sweep(self, now: float, resend: float) -> None:
        for writer in list(self.writers.values()):
            writer.resend_overdue(now, resend)

    # Records ---------------------------------------------------------------------------------------------

    def _ask(self, record: Ask, raw: Sequence[bytes]) -> bool:
        """Whether it has been answered already."""
        if not self._seen.first(record.id):
            self._metrics.drop("duplicate_ask")
            if record.id not in self.calls and not len(self.outbox):
                # The answer has left; if it is asked for still, it was lost.
                self._say_gone(record.id)
            return False
        self._metrics.received(self._node.codec.known(record.kind), len(record.body))
        mail = self._mail(record, raw)
        self.calls[record.id] = mail
        try:
            if record.kind == STOP:
                self._node.stop_for(self, record.id, record.actor)
                return False
            return self._node.cell(record.actor).deliver(mail)
        except MeshError as error:
            self._metrics.refuse(error.reason)
            self.fail_call(record.id, error)
            return False

    def _open(self, record: Open, raw: Sequence[bytes]) -> None:
        id = record.id
        if id in self.writers:
            self._opened.append(id)
            self.outbox.schedule()
            self._metrics.drop("duplicate_open")
            return
        if not self._seen.first(id):
            self._say_gone(id)
            self._metrics.drop("duplicate_open")
            return
        self._metrics.received(self._node.codec.known(record.kind), len(record.body))
        window = min(record.window, MAX_WINDOW)
        if len(self.writers) >= MAX_WRITERS or self._granted + window > PEER_WINDOWS:
            self._metrics.refuse("busy")
            self.outbox.put(End(id, 1, *to_wire(Busy("too many streams for one peer"))), ITEM_WEIGHT)
            return
        node = self._node
        writer = StreamWriter(self, id, window, node.codec, node.clock, self._metrics)
        self.writers[id] = writer
        self._granted += writer.granted
        self._opened.append(id)
        self.outbox.schedule()
        mail = self._mail(record, raw)
        try:
            node.cell(record.actor).open(mail, writer)
            self.calls[id] = mail
        except MeshError as error:
            self._metrics.refuse(error.reason)
            writer.finish(*to_wire(error))

    def _tell(self, record: Tell, raw: Sequence[bytes]) -> None:
        if not self._seen.first(record.id):
            self._metrics.drop("duplicate_tell")
            return
        self._metrics.received(self._node.codec.known(record.kind), len(record.body))
        call = Call(self.name, self.epoch, None, record.trace, self._node.clock)
        try:
            cell = self._node.cell(record.actor)
            cell.deliver(Mail(None, 0, record.kind, record.body, raw, call))
        except MeshError as error:
            self._metrics.refuse(error.reason)

    def _mail(self, record: Ask | Open, raw: Sequence[bytes]) -> Mail:
        clock = self._node.clock
        deadline = clock.now() + min(max(0, record.deadline_ms), MAX_DEADLINE_MS) / 1000
        call = Call(self.name, self.epoch, deadline, record.trace, clock)
        return Mail(self, record.id, record.kind, record.body, raw, call)

    def _acks(self, numbers: list[int]) -> None:
        if len(numbers) % 3:
            raise Malformed("acks come in threes")
        writers = self.writers
        for at in range(0, len(numbers), 3):
            writer = writers.get(numbers[at])
            if writer is not None:
                writer.acknowledged(numbers[at + 1], numbers[at + 2])

    def _cancel(self, ids: list[int]) -> None:
        for id in ids:
            # Marked as seen: a copy of the call that arrives after its cancel is not started.
            self._seen.first(id)
            writer = self.forget_writer(id)
            if writer is not None:
                writer.fail(PeerLost("the caller has left the stream"))
            mail = self.calls.pop(id, None)
            if mail is not None:
                mail.revoke(PeerLost("the caller has cancelled"))
            self._say_gone(id)

    def _say_gone(self, id: int) -> None:
        self._gone.append(id)
        self.outbox.schedule()

    # Called by cells and writers -----------------------------------------------------------------------

    def reply(self, id: int, result: Any) -> None:
        if self.calls.pop(id, None) is None:
            return
        try:
            # A handler may have nothing to say but that it is done.
            kind, body, raw = self._node.codec.encode(result) if result is not None else ("", b"", None)
        except MeshError as error:
            self._metrics.refuse(error.reason)
            self._fail(id, error)
            return
        record: Reply = Reply(id, kind, body)
        weight = len(body) + RECORD_WEIGHT
        if raw is not None:
            record = ReplyWithFrames(id, kind, body, len(raw))
            with_frames(record, raw)
            weight += sum(len(frame) for frame in raw)
        if self.outbox.put(record, weight):
            self._metrics.sent(kind or "done", weight)
        else:
            self._metrics.drop("reply_without_room")

    def stay_awake(self, seconds: float) -> None:
        self._node.stay_awake(self.routing_id, seconds)

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

    def _fail(self, id: int, error: BaseException) -> None:
        if not self.outbox.put(Failure(id, *to_wire(error)), RECORD_WEIGHT):
            self._metrics.drop("reply_without_room")

    # The outbox asks and tells ---------------------------------------------------------------------------

    def _urgent(self) -> list[Record]:
        records: list[Record] = []
        if self._welcome_due:
            self._welcome_due = False
            records.append(Welcome(self._node.name, self._node.epoch, self.number))
        if self._opened:
            records.append(Opened(self._opened))
            self._opened = []
        if self._gone:
            records.append(Gone(self._gone))
            self._gone = []
        return records

    def _unreachable(self) -> None:
        if self.gone_since is None:
            self.gone_since = self._node.clock.now()

    def _drop_calls(self, error: MeshError) -> None:
        writers, self.writers, self._granted = self.writers, {}, 0
        for writer in writers.values():
            writer.fail(error)
        calls, self.calls = self.calls, {}
        for mail in calls.values():
            mail.revoke(error)
        self.outbox.clear()


def no_actor(name: str) -> NotRunning:
    return NotRunning(f"no actor {name[:80]!r} here")


def draining(name: str) -> Draining:
    return Draining(f"{name} takes no new work")
