"""A dialler as seen by the node it called: its running calls, the streams written for it, the ids it used.

Knows records and actors' cells; sends through the door by routing id, and knows no sockets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mesh.actor import Call, Cell, Mail
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
    ToAcceptor,
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

Said = tuple[str, int]  # kind and weight
# An ask that was answered as it was read: by whom, its call, and what is to leave; no call where an error is.
Answered = tuple[Ask, Cell, Call | None, Said | None]


class AcceptedPeer:
    """One session. `number` tells the dialler whether it still talks to the state it remembers."""

    def __init__(self, node: Node, routing_id: bytes, hello: Hello, number: int) -> None:
        self.routing_id = routing_id
        self.name = hello.name
        self.epoch = hello.epoch
        self.number = number
        # What it says when it has nothing new to say.
        self.hello = Hello(hello.name, hello.epoch, hello.flags & ~RESUME)
        self.welcome_due = False
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
        self._welcome = Welcome(node.name, node.epoch, number)
        self._opened: list[int] = []
        self._gone: list[int] = []
        self.outbox = Outbox(node.epoch, partial(node.reply, routing_id), self._urgent, self._unreachable)
        self.outbox.to_epoch = hello.epoch

    @property
    def busy(self) -> bool:
        return bool(self.calls or self.writers)

    def received(self, bundle: AcceptorBundle, frames: Sequence[bytes]) -> None:
        """Everything of one bundle, whose epochs have been checked. Raises Malformed."""
        self.heard = self._node.clock.now()
        self.gone_since = None
        raw = raw_frames(bundle.records, frames) if len(frames) > 1 else None
        answered: list[Answered] = []
        try:
            for position, record in enumerate(bundle.records):
                given = raw.get(position, ()) if raw else ()
                if type(record) is Ask:
                    if (answer := self._ask(record, given)) is not None:
                        answered.append(answer)
                # The node has seen to it.
                elif type(record) is not Hello:
                    self._take(record, given)
                if self.outbox.closed:
                    return
        finally:
            if answered:
                # Somebody waits for it; the end of the tick is far for those who count in microseconds.
                self.outbox.flush()
                self._finish(answered)

    def greeted(self, hello: Hello) -> None:
        """The dialler said Hello, for the first time or to show that it lives. Who calls it has the Welcome sent."""
        self.welcome_due = True
        if hello.flags & RESUME:
            for writer in list(self.writers.values()):
                writer.resend()

    def lost(self, error: MeshError) -> None:
        """The session is over: everything it runs is cancelled."""
        self._drop_calls(error)
        self.outbox.close()

    def probe(self) -> None:
        """Say something, so that the transport finds out whether the dialler is still there."""
        self.welcome_due = True
        self.outbox.schedule()

    def farewell(self) -> None:
        self.outbox.put(Farewell(), 0)

    def sweep(self, now: float, resend: float) -> None:
        for writer in list(self.writers.values()):
            writer.resend_overdue(now, resend)

    # Records ---------------------------------------------------------------------------------------------

    def _take(self, record: ToAcceptor, raw: Sequence[bytes]) -> None:
        if type(record) is Acks:
            self._acks(record.numbers)
        elif type(record) is Open:
            self._open(record, raw)
        elif type(record) is Tell:
            self._tell(record, raw)
        elif type(record) is Cancel:
            self._cancel(record.ids)
        elif type(record) is Farewell:
            self.left = True
            self._node.farewell_from(self)

    def _ask(self, record: Ask, raw: Sequence[bytes]) -> Answered | None:
        """What is in the outbox already, and needs a flush; None: the answer comes in its time."""
        if not self._seen.first(record.id):
            self._metrics.drop("duplicate_ask")
            if record.id not in self.calls and not len(self.outbox):
                # The answer has left; if it is asked for still, it was lost.
                self._say_gone(record.id)
            return None
        try:
            cell = self._node.cell(record.actor) if record.kind != STOP else None
            if cell is not None and record.kind in cell.answers:
                return self._answer(cell, record, raw)
            mail = Mail(self, record.id, record.kind, record.body, raw, self._call(record))
            self.calls[record.id] = mail
            if cell is not None:
                cell.deliver(mail)
            else:
                self._node.stop_for(self, record.id, record.actor)
        except MeshError as error:
            self._metrics.refuse(error.reason)
            self.calls.pop(record.id, None)
            self._fail(record.id, error)
        self._metrics.received(self._node.codec.known(record.kind), len(record.body))
        return None

    def _answer(self, cell: Cell, record: Ask, raw: Sequence[bytes]) -> Answered:
        """At once. Neither a mail nor a call that is kept is made for it."""
        call = self._call(record)
        try:
            result = cell.answer(record.kind, record.body, raw, call)
        except Exception as error:
            self._fail(record.id, error, flushed=True)
            return record, cell, None, None
        return record, cell, call, self._say(record.id, result, flushed=True)

    def _finish(self, answered: list[Answered]) -> None:
        """What nobody who waits for an answer has to wait for."""
        for record, _, call, said in answered:
            self._metrics.received(record.kind, len(record.body))
            if said is not None:
                self._metrics.sent(*said)
            if call is not None and call.awaited:
                self._node.stay_awake(self.routing_id, call.awaited)
        for _, cell, call, _ in answered:
            if call is not None and call.afterwards is not None:
                cell.finish(call)

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
        mail = Mail(self, id, record.kind, record.body, raw, self._call(record))
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
            if record.kind not in cell.answers:
                cell.deliver(Mail(None, 0, record.kind, record.body, raw, call))
                return
        except MeshError as error:
            self._metrics.refuse(error.reason)
            return
        # What it refuses is counted, and nobody asked for it.
        with contextlib.suppress(Exception):
            cell.answer(record.kind, record.body, raw, call)
            cell.finish(call)

    def _call(self, record: Ask | Open) -> Call:
        milliseconds = record.deadline_ms
        if not 0 <= milliseconds <= MAX_DEADLINE_MS:
            milliseconds = min(max(0, milliseconds), MAX_DEADLINE_MS)
        # It was heard just now.
        deadline = self.heard + milliseconds / 1000
        return Call(self.name, self.epoch, deadline, record.trace, self._node.clock)

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
        if self.calls.pop(id, None) is not None and (said := self._say(id, result)) is not None:
            self._metrics.sent(*said)

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

    def _say(self, id: int, result: Any, flushed: bool = False) -> Said | None:
        """Into the outbox; what is to be counted of it. None: an error, or nothing, was said instead."""
        try:
            # A handler may have nothing to say but that it is done.
            kind, body, raw = self._node.codec.encode(result) if result is not None else ("", b"", None)
        except MeshError as error:
            self._metrics.refuse(error.reason)
            self._fail(id, error, flushed)
            return None
        record: Reply = Reply(id, kind, body)
        weight = len(body) + RECORD_WEIGHT
        if raw is not None:
            record = ReplyWithFrames(id, kind, body, len(raw))
            with_frames(record, raw)
            weight += sum(len(frame) for frame in raw)
        if self.outbox.put(record, weight, flushed):
            return kind or "done", weight
        self._metrics.drop("reply_without_room")
        return None

    def _fail(self, id: int, error: BaseException, flushed: bool = False) -> None:
        if not self.outbox.put(Failure(id, *to_wire(error)), RECORD_WEIGHT, flushed):
            self._metrics.drop("reply_without_room")

    # The outbox asks and tells ---------------------------------------------------------------------------

    def _urgent(self) -> list[Record]:
        records: list[Record] = []
        if self.welcome_due:
            self.welcome_due = False
            records.append(self._welcome)
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
