"""The node behind an endpoint as seen by the one that dials it: asks waiting for answers, streams being read.

Rule 1: nothing waits for ever. An ask ends by its answer, its deadline or the peer's loss; so does a stream.
Rule 2: a peer is lost when its connection stays away for `grace`, when it is silent for `silence` while we wait
        for it, when it says farewell, or when its Welcome shows another epoch or session than before.
Rule 3: what a connection or a network swallows is said again: an opening until it is confirmed, an ask now and then
        while it waits. The far side makes each call once, and says so when it has answered a call already.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mesh.accepted import RECORD_WEIGHT, STOP
from mesh.envelope import (
    RESUME,
    Acks,
    Ask,
    AskWithFrames,
    Cancel,
    End,
    Failure,
    Farewell,
    Gone,
    Hello,
    Item,
    ItemWithFrames,
    Open,
    Opened,
    OpenWithFrames,
    Record,
    Reply,
    Tell,
    TellWithFrames,
    Welcome,
    decode_for_dialler,
    raw_frames,
    with_frames,
)
from mesh.errors import Busy, DeadlineExceeded, Malformed, MeshError, PeerLost, Stale, from_wire
from mesh.outbox import Outbox
from mesh.stream import StreamReader
from mesh.transport import Frame, Line, Sent

if TYPE_CHECKING:
    from mesh.node import Node

MAX_CALLS = 65536
# An idle connection that has been down for so many graces is no longer tried.
FORGET_AFTER = 10


class Said:
    """A call that the far side has not confirmed: an opening not Opened, an ask without an answer."""

    __slots__ = ("again", "at", "often", "record", "until")

    def __init__(self, record: Ask | Open, again: float, now: float, timeout: float) -> None:
        self.record = record
        self.again = again  # seconds between two of it
        self.at = now
        self.until = now + timeout
        self.often = 1

    @property
    def weight(self) -> int:
        return len(self.record.body) + RECORD_WEIGHT + sum(map(len, self.record.raw))

    def once_more(self, now: float) -> None:
        # Whoever hears only this one has no more time than is left.
        self.record.deadline_ms = _milliseconds(self.until - now)
        self.at = now
        self.often += 1


class DialledPeer:
    """One per remote endpoint. Implements mesh.transport.LineOwner."""

    def __init__(self, node: Node, endpoint: str) -> None:
        self.endpoint = endpoint
        self.name = endpoint
        self.codec = node.codec
        self.clock = node.clock
        self.metrics = node.metrics
        self.blocking = False
        self.said_farewell = False
        self.left = False
        self._node = node
        self._timing = node.timing
        self._line: Line | None = None
        self._next_id = 0
        self._known = 0  # the acceptor's number for this session
        self._newest_epoch = 0
        self._welcomed = False
        self._hello_flags = 0
        self._hello_due = False
        self._hello_at = -math.inf
        self._heard = -math.inf
        self._busy_since = -math.inf
        self._down_since: float | None = None
        self._spoke = False  # something went out on this connection
        self._resuming = False  # connected, and not yet welcomed on this connection
        self._parting = False  # it said farewell: the next connection leads to its successor
        self._asks: dict[int, asyncio.Future[tuple[str, bytes, Sequence[Frame]]]] = {}
        self._streams: dict[int, StreamReader] = {}
        self._said: dict[int, Said] = {}
        self._cancels: dict[int, float] = {}  # not yet answered, when last sent
        self._cancel_due: list[int] = []
        self._ack_due: set[StreamReader] = set()
        self._ack_timer: object | None = None
        self.outbox = Outbox(node.epoch, self._send, self._urgent, lambda: None)

    @property
    def busy(self) -> bool:
        return bool(self._asks or self._streams or self._cancels)

    @property
    def streams_open(self) -> int:
        return len(self._streams)

    # What a Ref asks for -------------------------------------------------------------------------------

    def tell(self, actor: str, message: Any, trace: str) -> None:
        kind, body, raw = self.codec.encode(message)
        record: Tell = Tell(self._new_id(), actor, kind, body, trace)
        if raw is not None:
            record = TellWithFrames(record.id, actor, kind, body, trace, len(raw))
            with_frames(record, raw)
        self._start_work()
        weight = len(body) + RECORD_WEIGHT + sum(map(len, record.raw))
        if self.outbox.put(record, weight):
            self.metrics.sent(kind, weight)
        else:
            self.metrics.drop("tell_without_room")

    async def ask(self, actor: str, message: Any, timeout: float, trace: str) -> Any:
        kind, body, raw = self.codec.encode(message)
        record: Ask = Ask(self._new_id(), actor, kind, _milliseconds(timeout), body, trace)
        if raw is not None:
            record = AskWithFrames(record.id, actor, kind, record.deadline_ms, body, trace, len(raw))
            with_frames(record, raw)
        started = self.clock.now()
        answer = await self._answered(record, timeout)
        self.metrics.round_trip(kind, self.clock.now() - started)
        try:
            return self.codec.decode(*answer) if answer[0] else None
        except MeshError as error:
            self.metrics.refuse(error.reason)
            raise

    async def stop_actor(self, actor: str, timeout: float) -> None:
        await self._answered(Ask(self._new_id(), actor, STOP, _milliseconds(timeout), b""), timeout)

    async def _answered(self, record: Ask, timeout: float) -> tuple[str, bytes, Sequence[Frame]]:
        if timeout <= 0:
            raise DeadlineExceeded("no time was given")
        self._start_work()
        said = Said(record, self._timing.again, self.clock.now(), timeout)
        weight = said.weight
        if len(self._asks) >= MAX_CALLS or not self.outbox.put(record, weight):
            raise Busy(f"the outbox for {self.name} is full")
        self.metrics.sent(record.kind, weight)
        id = record.id
        self._said[id] = said
        answer: asyncio.Future[tuple[str, bytes, Sequence[Frame]]] = asyncio.get_running_loop().create_future()
        self._asks[id] = answer
        timer = self.clock.call_later(timeout, self._expired, id, timeout)
        try:
            return await answer
        except asyncio.CancelledError:
            self._cancel_call(id)
            raise
        finally:
            timer.cancel()
            self._asks.pop(id, None)
            self._said.pop(id, None)

    def _expired(self, id: int, timeout: float) -> None:
        answer = self._asks.get(id)
        if answer is not None and not answer.done():
            answer.set_exception(DeadlineExceeded(f"no answer from {self.name} within {timeout:g} s"))

    # What a StreamReader asks for ------------------------------------------------------------------------

    def begin_stream(self, stream: StreamReader, actor: str, message: Any, timeout: float, trace: str) -> None:
        kind, body, raw = self.codec.encode(message)
        if timeout <= 0:
            raise DeadlineExceeded("no time was given")
        id = stream.id = self._new_id()
        record: Open = Open(id, actor, kind, _milliseconds(timeout), stream.window, body, trace)
        if raw is not None:
            record = OpenWithFrames(id, actor, kind, record.deadline_ms, stream.window, body, trace, len(raw))
            with_frames(record, raw)
        self._start_work()
        now = self.clock.now()
        said = Said(record, self._timing.resend, now, timeout)
        weight = said.weight
        if len(self._streams) >= MAX_CALLS or not self.outbox.put(record, weight):
            raise Busy(f"the outbox for {self.name} is full")
        self.metrics.sent(kind, weight)
        stream.acked_at = now
        self._streams[id] = stream
        self._said[id] = said

    def end_stream(self, stream: StreamReader, finished: bool) -> None:
        """The reader is done; unless it has seen the end, the far handler is cancelled."""
        if self._streams.pop(stream.id, None) is None:
            return
        self._said.pop(stream.id, None)
        if not finished:
            self._cancel_call(stream.id)

    def ack_soon(self, stream: StreamReader) -> None:
        self._ack_due.add(stream)
        if self._ack_timer is None:
            self._ack_timer = self.clock.call_later(self._timing.ack, self._ack_tick)

    def ack_now(self, stream: StreamReader) -> None:
        self._ack_due.add(stream)
        self.outbox.schedule()

    def _ack_tick(self) -> None:
        self._ack_timer = None
        if self._ack_due:
            self.outbox.schedule()

    def _cancel_call(self, id: int) -> None:
        if len(self._cancels) < MAX_CALLS:
            self._cancels[id] = self.clock.now()
            self._cancel_due.append(id)
            self.outbox.schedule()

    # The line's events -----------------------------------------------------------------------------------

    def connected(self) -> None:
        self._down_since = None
        self._parting = False
        self._resuming = True
        self._say_hello(RESUME)
        self.outbox.flush()

    def disconnected(self, why: str) -> None:
        if self._down_since is None:
            self._down_since = self.clock.now()
        spoke, self._spoke, self._parting = self._spoke, False, False
        if not self.busy:
            self._forget_session()
        elif spoke and not self._welcomed:
            # Whether it was taken, and by whom, will never be known: it cannot be resumed.
            self._reset(PeerLost(f"the connection to {self.name} ended before it was welcomed"))

    def writable(self) -> None:
        self.outbox.flush()

    def refused(self, reason: str) -> None:
        self.metrics.refuse(reason)

    def received(self, frames: Sequence[bytes]) -> None:
        self.metrics.bundles["received"] += 1
        try:
            bundle = decode_for_dialler(frames)
            raw = raw_frames(bundle.records, frames) if len(frames) > 1 else None
        except Malformed:
            self.metrics.refuse("malformed")
            return
        if not self._from_the_living(bundle.epoch, bundle.to_epoch, bundle.records):
            return
        self._heard = self.clock.now()
        streams = self._streams
        for position, record in enumerate(bundle.records):
            if type(record) is Item:
                if raw and position in raw:
                    record = _item_with(record, raw[position])
                stream = streams.get(record.id)
                if stream is None:
                    self._unwanted(record.id)
                else:
                    self.metrics.received(self.codec.known(record.kind), len(record.body))
                    stream.take(record)
            else:
                self._control(record, raw.get(position, ()) if raw else ())

    def _from_the_living(self, epoch: int, to_epoch: int, records: Sequence[Record]) -> bool:
        if to_epoch != self._node.epoch or epoch < self._newest_epoch:
            self.metrics.drop("stale_epoch")
            return False
        if epoch > self.outbox.to_epoch:
            if self.outbox.to_epoch and not any(type(record) is Welcome for record in records):
                # A successor answers: what it says makes sense after it has said Welcome.
                self._say_hello(0)
                self.metrics.drop("before_welcome")
                return False
            if self.outbox.to_epoch:
                self._reset(PeerLost(f"{self.name} has restarted"))
            self._newest_epoch = self.outbox.to_epoch = epoch
        return True

    def _control(self, record: Record, raw: Sequence[Frame]) -> None:
        if type(record) is Reply:
            self.metrics.received(self.codec.known(record.kind), len(record.body))
            self._answer(record.id, (record.kind, record.body, raw))
        elif type(record) is Failure:
            self._answer(record.id, from_wire(record.reason[:200], record.message[:2000]))
        elif type(record) is End:
            stream = self._streams.get(record.id)
            if stream is None:
                self._unwanted(record.id)
            else:
                self._said.pop(record.id, None)
                stream.take(record)
        elif type(record) is Opened:
            for id in record.ids:
                if id not in self._asks:
                    self._said.pop(id, None)
        elif type(record) is Gone:
            self._gone(record.ids)
        elif type(record) is Welcome:
            self._welcome(record)
        elif type(record) is Farewell:
            self._farewell(record)

    def _answer(self, id: int, answer: tuple[str, bytes, Sequence[Frame]] | MeshError) -> None:
        waiting = self._asks.get(id)
        if waiting is None or waiting.done():
            self.metrics.drop("late_answer")
        elif isinstance(answer, MeshError):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    def _gone(self, ids: list[int]) -> None:
        for id in ids:
            self._cancels.pop(id, None)
            stream, said = self._streams.get(id), self._said.get(id)
            if stream is not None:
                stream.fail(PeerLost(f"{self.name} no longer has this stream"))
            elif said is not None and said.often > 1:
                # Of an ask said once a network may have made two; then the answer is on its way.
                self._answer(id, PeerLost(f"the answer of {self.name} is lost"))

    def _unwanted(self, id: int) -> None:
        """Items of a stream nobody reads: our cancel or last ack did not arrive."""
        self.metrics.drop("unread_item")
        if id not in self._cancels:
            self._cancel_call(id)

    def _welcome(self, record: Welcome) -> None:
        if self._known and self._known != record.session:
            self._reset(PeerLost(f"{self.name} has forgotten this session"))
        self.name = record.name[:120]
        self._known = record.session
        self._welcomed = True
        self._resuming = False

    def _farewell(self, record: Farewell) -> None:
        if not self.said_farewell:
            self.outbox.put(Farewell(), 0)
            self.outbox.flush()
        self.left = True
        if record.reason == Stale.reason:
            self._reset(Stale(f"{self.name} knows a newer epoch of this node"))
        else:
            # What it still says must not make us take it for the living one.
            self._newest_epoch = self.outbox.to_epoch + 1
            self._reset(PeerLost(f"{self.name} has left"))
            if not self._resuming:
                # Otherwise these were the last words of a connection that has been replaced already.
                self.disconnected("farewell")
                self._parting = True

    # Time ------------------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """About ten times a second: who is lost, what must be said again."""
        timing = self._timing
        if not self.busy:
            if self._down_since is not None and now - self._down_since > FORGET_AFTER * timing.grace:
                self._hang_up()
            return
        since = max(self._busy_since, self._heard)
        down = self._down_since
        if down is not None and now - max(down, self._busy_since) > timing.grace:
            self.lost(PeerLost(f"no connection to {self.name} for {timing.grace:g} s"))
        elif now - since > timing.silence:
            self.lost(PeerLost(f"nothing heard from {self.name} for {timing.silence:g} s"))
        elif down is None:
            if now - max(self._heard, self._hello_at) > timing.ping:
                self._say_hello(0)
            self._repeat(now)

    def _repeat(self, now: float) -> None:
        after = self._timing.resend
        if len(self.outbox):
            return
        for said in self._said.values():
            if now - said.at > said.again and self.outbox.put(said.record, said.weight):
                said.once_more(now)
                self.metrics.resent += 1
        for id, sent_at in self._cancels.items():
            if now - sent_at > after:
                self._cancels[id] = now
                self._cancel_due.append(id)
                self.outbox.schedule()
        for stream in self._streams.values():
            # A lost acknowledgement that carried credit would leave the writer waiting.
            if now - stream.acked_at > self._timing.ping:
                stream.acked_at = now
                self._ack_due.add(stream)
                self.outbox.schedule()

    def _start_work(self) -> None:
        now = self.clock.now()
        if not self.busy:
            self._busy_since = now
            if now - self._heard > self._timing.ping:
                self._forget_session()
        if self._line is None:
            self._dial(now)

    def _forget_session(self) -> None:
        """Nothing is open, so whoever answers next is right: a successor need not fail the next call."""
        self._known = 0
        self._welcomed = False
        self.outbox.to_epoch = 0

    def _dial(self, now: float) -> None:
        self._down_since = now
        self._spoke = self._parting = False
        self._line = self._node.dial(self.endpoint, self)

    def _say_hello(self, flags: int) -> None:
        self._hello_due = True
        self._hello_flags |= flags
        self.outbox.schedule()

    # Ends ------------------------------------------------------------------------------------------------

    def lost(self, error: MeshError) -> None:
        """Give the peer up; the next call dials anew."""
        self.metrics.peers_lost += 1
        self._hang_up()
        self._reset(error)

    @property
    def forgettable(self) -> bool:
        """Nothing is open and no connection held: the node need not remember this endpoint."""
        return self._line is None and not self.busy

    def _hang_up(self) -> None:
        self._down_since = None
        if self._line is not None:
            self._line.close()
            self._line = None

    def close(self) -> None:
        self.lost(PeerLost("this node has stopped"))
        self.outbox.close()

    def farewell(self) -> None:
        """Ask for a Farewell, which shows that everything before has arrived."""
        self.said_farewell = True
        self.left = False
        self.outbox.put(Farewell(), 0)

    @property
    def reachable(self) -> bool:
        """Something said now would probably arrive."""
        # The first words may be out before the news of the connection is in.
        return self._line is not None and (self._down_since is None or self._spoke)

    def _reset(self, error: MeshError) -> None:
        """Everything open ends with `error`; what comes next is a new session."""
        self._forget_session()
        self.outbox.clear()
        self._said.clear()
        self._cancel_due.clear()
        self._ack_due.clear()
        asks = list(self._asks.values())
        for answer in asks:
            if not answer.done():
                answer.set_exception(error)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)
        self._cancels.clear()

    # The outbox asks ---------------------------------------------------------------------------------------

    def _send(self, frames: Sequence[Frame]) -> Sent:
        if self._line is None or self._parting:
            return Sent.FULL
        sent = self._line.send(frames)
        if sent is Sent.SENT:
            self._spoke = True
            self.metrics.bundles["sent"] += 1
        return sent

    def _urgent(self) -> list[Record]:
        records: list[Record] = []
        if self._hello_due or (not self._welcomed and len(self.outbox)):
            self._hello_due = False
            self._hello_at = self.clock.now()
            node = self._node
            records.append(Hello(node.name, node.epoch, self._hello_flags))
            self._hello_flags = 0
        if self._cancel_due:
            records.append(Cancel(self._cancel_due))
            self._cancel_due = []
        if self._ack_due:
            numbers: list[int] = []
            for stream in self._ack_due:
                stream.reported = stream.consumed
                numbers += (stream.id, stream.received, stream.consumed)
            self._ack_due = set()
            records.append(Acks(numbers))
        return records

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id


def _item_with(record: Item, raw: Sequence[bytes]) -> Item:
    item = ItemWithFrames(record.id, record.seq, record.kind, record.body, record.frames)
    with_frames(item, raw)
    return item


def _milliseconds(timeout: float) -> int:
    return max(1, min(math.ceil(timeout * 1000), 2**53))
