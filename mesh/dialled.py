"""The node behind an endpoint as its dialler sees it: asks that wait for answers, and streams being read.

Rule 1: nothing waits for ever. An ask ends by its answer, its deadline or the loss of the peer; so does a stream.
Rule 2: one connection, one session. A peer is lost when its connection ends, when there is no connection within
        `connect`, when it sends nothing for `silence` while calls are open, when it says Farewell, and when its Welcome
        shows another epoch or session than before. Everything open then ends with PeerLost, and nothing is sent again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from mesh.accepted import RECORD_WEIGHT, weight_of_call
from mesh.actor import Home
from mesh.clock import Timer
from mesh.envelope import (
    AskRecord,
    Cancel,
    Credit,
    End,
    Failure,
    Farewell,
    Hello,
    Item,
    MeshRecord,
    Open,
    Reply,
    ToDialler,
    Welcome,
    decode_for_dialler,
    raw_frames,
)
from mesh.errors import Busy, DeadlineExceeded, Malformed, MeshError, NotReached, PeerLost, Stale, from_wire
from mesh.outbox import Outbox
from mesh.stream import StreamReader
from mesh.timing import Timing
from mesh.transport import DialledLine, Frame, LineOwner, Sent

MAX_CALLS = 65536
Answer = tuple[str, bytes, Sequence[Frame]]


class DiallingNode(Home, Protocol):
    """What the peer needs of its node (mesh/node.py)."""

    timing: Timing
    overslept: bool

    def dial(self, endpoint: str, owner: LineOwner) -> DialledLine: ...

    def is_stale(self, newest: int) -> None:
        """A peer knows a newer epoch of this node."""
        ...


class _Ask(NamedTuple):
    """One that waits for its answer."""

    kind: str
    started: float
    tell: Callable[[Any], None]
    timer: Timer


class DialledPeer:
    """One per remote endpoint. Implements mesh.transport.LineOwner and mesh.ref.Peer."""

    def __init__(self, node: DiallingNode, endpoint: str) -> None:
        self.endpoint = endpoint
        self.name = endpoint
        self.codec = node.codec
        self.clock = node.clock
        self.metrics = node.metrics
        self.left = False  # it has said Farewell
        self._said_farewell = False
        self._node = node
        self._timing = node.timing
        self._line: DialledLine | None = None
        self._up = False
        self._parting = False  # it has left: what is asked now waits for the next connection
        self._waiting_since = -math.inf  # without a connection
        self._next_id = 0
        self._session = 0  # the acceptor's number for this session; 0: not welcomed yet
        self._newest_epoch = 0
        self._hello_due = False
        self._heard = -math.inf
        self._spoke = -math.inf
        self._busy_since = -math.inf
        self._asks: dict[int, _Ask] = {}
        self._streams: dict[int, StreamReader] = {}
        self._credit_due: set[StreamReader] = set()
        self._credit_timer: Timer | None = None
        self.outbox = Outbox(node.epoch, self._send, self._control, lambda: None)

    @property
    def busy(self) -> bool:
        return bool(self._asks or self._streams)

    @property
    def streams_open(self) -> int:
        return len(self._streams)

    @property
    def reachable(self) -> bool:
        """There is a connection, or the first bundle is on its way."""
        return self._up and not self._parting

    @property
    def forgettable(self) -> bool:
        """Nothing is open and no connection held: the node need not remember this endpoint."""
        return self._line is None and not self.busy

    # What a Ref asks for -------------------------------------------------------------------------------

    async def ask(self, actor: str, message: Any, timeout: float) -> Any:
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        id = self.begin_ask(actor, message, timeout, partial(_settle, waiting))
        try:
            return await waiting
        except asyncio.CancelledError:
            self.cancel_ask(id)
            raise

    def begin_ask(self, actor: str, message: Any, timeout: float, tell: Callable[[Any], None]) -> int:
        """`ask` without a task: `tell` is called once, with the answer or with the MeshError that ends the ask. Returns
        its id, for `cancel_ask`. Raises what keeps it from being sent."""
        kind, body, raw = self.codec.encode(message)
        if timeout <= 0:
            raise DeadlineExceeded("no time was given")
        started = self._begin()
        id = self._new_id()
        record = AskRecord(id, actor, kind, _milliseconds(timeout), body, len(raw))
        if len(self._asks) >= MAX_CALLS or not self._put(record, raw):
            raise Busy(f"the outbox for {self.name} is full")
        timer = self.clock.call_later(timeout, self._expired, id, timeout)
        self._asks[id] = _Ask(kind, started, tell, timer)
        return id

    def cancel_ask(self, id: int) -> None:
        """Nobody is told any more, and the far handler is cancelled. Does nothing when the ask has ended."""
        if (found := self._asks.pop(id, None)) is not None:
            found.timer.cancel()
            self._cancel(id)

    def _expired(self, id: int, timeout: float) -> None:
        if self._node.overslept:
            # The answer may be here, unread.
            timer = self.clock.call_later(self._timing.sweep, self._end_unanswered, id, timeout)
            self._asks[id] = self._asks[id]._replace(timer=timer)
        else:
            self._end_unanswered(id, timeout)

    def _end_unanswered(self, id: int, timeout: float) -> None:
        self._end_ask(id, DeadlineExceeded(f"no answer from {self.name} within {timeout:g} s"))

    def _end_ask(self, id: int, answer: Answer | MeshError) -> None:
        found = self._asks.pop(id, None)
        if found is None:
            self.metrics.drop("late_answer")
            return
        found.timer.cancel()
        if isinstance(answer, MeshError):
            found.tell(answer)
            return
        self.metrics.round_trip(found.kind, self.clock.now() - found.started)
        try:
            found.tell(self.codec.decode(*answer) if answer[0] else None)
        except MeshError as error:
            self.metrics.refuse(error.reason)
            found.tell(error)

    # What a StreamReader asks for ------------------------------------------------------------------------

    def begin_stream(self, stream: StreamReader, actor: str, message: Any, timeout: float) -> None:
        kind, body, raw = self.codec.encode(message)
        if timeout <= 0:
            raise DeadlineExceeded("no time was given")
        self._begin()
        id = stream.id = self._new_id()
        record = Open(id, actor, kind, _milliseconds(timeout), stream.window, body, len(raw))
        if len(self._streams) >= MAX_CALLS or not self._put(record, raw):
            raise Busy(f"the outbox for {self.name} is full")
        self._streams[id] = stream

    def end_stream(self, stream: StreamReader, finished: bool) -> None:
        self._credit_due.discard(stream)
        if self._streams.pop(stream.id, None) is not None and not finished:
            self._cancel(stream.id)

    def credit(self, stream: StreamReader, at_once: bool) -> None:
        self._credit_due.add(stream)
        if at_once:
            self.outbox.schedule()
        elif self._credit_timer is None:
            self._credit_timer = self.clock.call_later(self._timing.credit, self._send_credits)

    def _send_credits(self) -> None:
        self._credit_timer = None
        self.outbox.schedule()

    def _cancel(self, id: int) -> None:
        # Behind the call itself. Without a line there is nothing to cancel any more.
        if self._line is not None and not self.outbox.put(Cancel([id]), RECORD_WEIGHT, reserve=2):
            self.lost(PeerLost(f"{self.name} does not read"))

    # The line's events -----------------------------------------------------------------------------------

    def connected(self) -> None:
        self._up, self._parting, self._said_farewell = True, False, False
        self._heard = self.clock.now()
        self._say_hello()
        self.outbox.flush()

    def disconnected(self, why: str) -> None:
        was_parting = self._parting
        self._hang_up()
        if not was_parting:
            self._end_all(PeerLost(f"the connection to {self.name} has ended: {why}"))
        elif self.busy or len(self.outbox):
            self.connect()

    def writable(self) -> None:
        self.outbox.flush()

    def refused(self, reason: str) -> None:
        self.metrics.refuse(reason)

    def received(self, frames: Sequence[bytes]) -> None:
        self.metrics.bundles["received"] += 1
        try:
            bundle = decode_for_dialler(frames)
            raw = raw_frames(bundle.records, frames) if len(frames) > 1 else {}
        except Malformed:
            self.metrics.refuse("malformed")
            return
        # The epoch is known from Welcome on, and Welcome leads the first bundle of a session.
        first = bundle.records[0] if bundle.records else None
        welcomed = isinstance(first, Welcome | Farewell) or bundle.epoch == self.outbox.to_epoch
        if bundle.to_epoch != self._node.epoch or bundle.epoch < self._newest_epoch or not welcomed:
            self.metrics.drop("stale_epoch")
            return
        self._heard = self.clock.now()
        for position, record in enumerate(bundle.records):
            if isinstance(record, Welcome):
                self._welcome(record, bundle.epoch)
            else:
                self._take(record, raw.get(position, ()))

    def _take(self, record: ToDialler, raw: Sequence[Frame]) -> None:
        if isinstance(record, Item):
            stream = self._streams.get(record.id)
            if stream is not None:
                self.metrics.received(self.codec.known(record.kind), len(record.body))
                stream.take(record, raw)
        elif isinstance(record, Reply):
            self.metrics.received(self.codec.known(record.kind), len(record.body))
            self._end_ask(record.id, (record.kind, record.body, raw))
        elif isinstance(record, Failure):
            self._end_ask(record.id, from_wire(record.reason[:200], record.message[:2000]))
        elif isinstance(record, End):
            if (stream := self._streams.get(record.id)) is not None:
                stream.take(record)
        elif isinstance(record, Farewell):
            self._farewell(record)

    def _welcome(self, record: Welcome, epoch: int) -> None:
        if self._session and (self._session, self.outbox.to_epoch) != (record.session, epoch):
            self._end_all(PeerLost(f"{self.name} has forgotten this session"))
        self.name = record.name[:120]
        self._session = record.session
        self._newest_epoch = self.outbox.to_epoch = epoch

    def _farewell(self, record: Farewell) -> None:
        if not self._said_farewell:
            self.farewell()
        self.left = True
        if record.reason == Stale.reason:
            self.lost(Stale(f"{self.name} knows a newer epoch of this node"))
            self._node.is_stale(record.epoch)
        else:
            self._parting = True
            self._waiting_since = self.clock.now()
            self._end_all(PeerLost(f"{self.name} has left"))

    # Time ------------------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """About ten times a second: is the peer lost, is it time to say something."""
        timing = self._timing
        if self._line is None:
            return
        if self._parting:
            # It should have closed its socket by now. Don't wait for it any longer.
            if now - self._waiting_since > timing.farewell + timing.linger:
                self.disconnected("it has left")
        elif not self._up:
            if now - max(self._waiting_since, self._busy_since) > timing.connect:
                self.lost(NotReached(f"no connection to {self.name} within {timing.connect:g} s"))
        elif self.busy:
            if now - max(self._busy_since, self._heard) > timing.silence:
                self.lost(PeerLost(f"nothing heard from {self.name} for {timing.silence:g} s"))
            elif now - self._spoke > timing.ping:
                self._say_hello()

    def _begin(self) -> float:
        """A call is about to be made: see to the connection. Returns the time."""
        now = self.clock.now()
        if not self.busy:
            self._busy_since = now
            if now - self._heard > self._timing.ping:
                # No call is open, so any session of the peer will do: it may have restarted or dropped ours.
                self._session = 0
        self.connect()
        return now

    def connect(self) -> None:
        """Dial, unless there is a line."""
        if self._line is None:
            self._waiting_since = self.clock.now()
            self._line = self._node.dial(self.endpoint, self)

    def _say_hello(self) -> None:
        self._hello_due = True
        self.outbox.schedule()

    # Ends ------------------------------------------------------------------------------------------------

    def lost(self, error: MeshError) -> None:
        """Give the peer up; the next call dials anew."""
        self._hang_up()
        self._end_all(error)

    def close(self) -> None:
        self.lost(PeerLost("this node has stopped"))
        self.outbox.close()
        if self._credit_timer is not None:
            self._credit_timer.cancel()

    def farewell(self) -> None:
        """Say Farewell. The peer's own shows that it has read everything before."""
        self._said_farewell, self.left = True, False
        self.outbox.put(Farewell(), 0, reserve=2)
        self.outbox.flush()

    def _hang_up(self) -> None:
        self._up = self._parting = False
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _end_all(self, error: MeshError) -> None:
        """Everything open ends with `error`; what comes next is a new session."""
        if self.busy:
            self.metrics.peers_lost += 1
        self._session = self.outbox.to_epoch = 0
        self.outbox.clear()
        self._credit_due.clear()
        asks, self._asks = self._asks, {}
        for ask in asks.values():
            ask.timer.cancel()
            ask.tell(error)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)

    # The outbox asks ---------------------------------------------------------------------------------------

    def _send(self, frames: Sequence[Frame]) -> Sent:
        if self._line is None or not self.reachable:
            return Sent.FULL
        sent = self._line.send(frames)
        if sent is Sent.SENT:
            self._spoke = self.clock.now()
            self.metrics.bundles["sent"] += 1
        return sent

    def _control(self) -> list[MeshRecord]:
        records: list[MeshRecord] = []
        if self._hello_due or (not self._session and len(self.outbox)):
            self._hello_due = False
            records.append(Hello(self._node.name, self._node.epoch))
        if self._credit_due:
            numbers: list[int] = []
            for stream in self._credit_due:
                stream.reported = stream.consumed
                numbers += (stream.id, stream.consumed)
            self._credit_due = set()
            records.append(Credit(numbers))
        return records

    def _put(self, record: AskRecord | Open, raw: Sequence[Frame] = ()) -> bool:
        weight = weight_of_call(record.body, raw)
        if not self.outbox.put(record, weight, raw):
            return False
        self.metrics.sent(record.kind, weight)
        return True

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id


def _settle(waiting: asyncio.Future[Any], answer: Any) -> None:
    if waiting.done():
        return
    if isinstance(answer, MeshError):
        waiting.set_exception(answer)
    else:
        waiting.set_result(answer)


def _milliseconds(timeout: float) -> int:
    return max(1, min(math.ceil(timeout * 1000), 2**53))
