"""Both ends of a stream: items exactly once and in order, under credits counted in bytes.

Knows sequence numbers, credits and acknowledgements; sends through the peer that owns it, and knows no sockets.
Rule 1: at most `window` bytes are unread; one item larger than the window goes when nothing else is unread.
Rule 2: an item stays with the writer until the reader's node has acknowledged it, and is sent again when that
        takes too long or the connection was lost. Acknowledgements are cumulative, so any of them may be lost.
Rule 3: whatever happens, both ends end: by End, by Cancel, by the deadline or because the peer is lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from mesh.clock import Clock, Timer
from mesh.codec import Codec
from mesh.envelope import End, Item, ItemWithFrames, with_frames
from mesh.errors import DeadlineExceeded, Malformed, MeshError, NotRunning, from_wire
from mesh.outbox import Outbox

if TYPE_CHECKING:
    from mesh.dialled import DialledPeer
    from mesh.metrics import BusMetrics
    from mesh.node import Node

DEFAULT_WINDOW = 65536
# What an item costs beside its body, so that empty items are bounded, too.
ITEM_WEIGHT = 16
MAX_BACKOFF = 8


def weight_of(record: Item) -> int:
    weight = len(record.body) + ITEM_WEIGHT
    if record.raw:
        weight += sum(len(frame) for frame in record.raw)
    return weight


class WriterOwner(Protocol):
    """What a writer needs of the accepted peer it belongs to."""

    outbox: Outbox

    def forget_writer(self, id: int) -> object: ...


class StreamWriter:
    """The handler's end. Use it from the event loop only."""

    __slots__ = (
        "_backoff", "_clock", "_codec", "_consumed", "_ended", "_failure", "_metrics", "_needed", "_owner",
        "_progress_at", "_sent", "_seq", "_unacked", "_waiters", "granted", "id", "window",
    )  # fmt: skip

    def __init__(
        self, owner: WriterOwner, id: int, window: int, codec: Codec, clock: Clock, metrics: BusMetrics
    ) -> None:
        self.id = id
        self.window = self.granted = max(1, window)
        self._owner = owner
        self._codec = codec
        self._clock = clock
        self._metrics = metrics
        self._seq = 0
        self._sent = 0
        self._consumed = 0
        self._unacked: deque[Item | End] = deque()
        self._waiters: list[asyncio.Future[None]] = []
        self._failure: MeshError | None = None
        self._ended = False
        self._needed = 0  # credit the last refused offer would have taken
        self._progress_at = 0.0
        self._backoff = 1

    @property
    def credit(self) -> int:
        """Bytes that may be sent now."""
        return max(0, self.window - (self._sent - self._consumed))

    @property
    def outstanding(self) -> int:
        """Bytes sent and not yet read."""
        return self._sent - self._consumed

    def offer(self, item: Any) -> bool:
        """Send without waiting; False when there is no credit, and nothing was queued."""
        if self._failure is not None:
            raise self._failure
        unread = self._sent - self._consumed
        if unread >= self.window:
            return False
        self._needed = self._put(item, unread)
        return not self._needed

    async def send(self, item: Any) -> None:
        """Send, waiting for credit as long as the stream lives."""
        while True:
            if self._failure is not None:
                raise self._failure
            missing = self._put(item, self._sent - self._consumed)
            if not missing:
                return
            await self._until_credit(missing)

    async def writable(self) -> None:
        """Until there is credit: after a refused offer, for an item of that size."""
        await self._until_credit(max(1, self._needed))

    def _put(self, item: Any, unread: int) -> int:
        """0 when sent, else the credit that is needed for it."""
        kind, body, raw = self._codec.encode(item)
        id, seq = self.id, self._seq + 1
        if raw is None:
            record = Item(id, seq, kind, body)
            weight = len(body) + ITEM_WEIGHT
        else:
            record = ItemWithFrames(id, seq, kind, body, len(raw))
            with_frames(record, raw)
            weight = weight_of(record)
        if unread + weight > self.window and unread:
            return weight
        if not self._owner.outbox.put(record, weight):
            return 1
        self._seq = seq
        self._sent += weight
        if not self._unacked:
            self._progress_at = self._clock.now()
        self._unacked.append(record)
        self._metrics.sent(kind, weight)
        return 0

    async def _until_credit(self, needed: int) -> None:
        while True:
            if self._failure is not None:
                raise self._failure
            waiter = asyncio.get_running_loop().create_future()
            if not self._owner.outbox.has_room:
                self._owner.outbox.room_waiters.append(waiter)
            elif self.credit < needed and self._sent > self._consumed:
                self._waiters.append(waiter)
            else:
                return
            await waiter

    # Called by the peer --------------------------------------------------------------------------------

    def finish(self, reason: str, message: str) -> None:
        """The handler is done; the End goes out, and again until it is acknowledged."""
        if self._ended or self._failure is not None:
            return
        self._ended = True
        self._failure = NotRunning("this stream has ended")
        self._seq += 1
        end = End(self.id, self._seq, reason, message)
        if not self._unacked:
            self._progress_at = self._clock.now()
        self._unacked.append(end)
        # Without room it goes with the retransmissions.
        self._owner.outbox.put(end, ITEM_WEIGHT)
        self._metrics.sent("end", ITEM_WEIGHT)

    def acknowledged(self, seq: int, consumed: int) -> None:
        """The reader's node has everything up to `seq`, its actor has read `consumed` bytes."""
        unacked = self._unacked
        if unacked and unacked[0].seq <= seq:
            while unacked and unacked[0].seq <= seq:
                unacked.popleft()
            self._progress_at = self._clock.now()
            self._backoff = 1
        if self._consumed < consumed <= self._sent:
            self._consumed = consumed
            self._wake()
        if self._ended and not unacked:
            self._owner.forget_writer(self.id)

    def resend_overdue(self, now: float, after: float) -> None:
        """Send again what has waited too long for its acknowledgement."""
        if not self._unacked or now - self._progress_at < after * self._backoff:
            return
        if len(self._owner.outbox):
            # It may not even have left: a second copy would only lengthen the queue.
            return
        self._backoff = min(self._backoff * 2, MAX_BACKOFF)
        self.resend()

    def resend(self) -> None:
        """Everything unacknowledged once more."""
        self._progress_at = self._clock.now()
        for record in self._unacked:
            weight = weight_of(record) if isinstance(record, Item) else ITEM_WEIGHT
            if not self._owner.outbox.put(record, weight):
                return
            self._metrics.resent += 1

    def fail(self, error: MeshError) -> None:
        """Nobody reads any more: what the handler does next with this stream raises."""
        if self._failure is None:
            self._failure = error
        self._unacked.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


class StreamReader:
    """The caller's end: an async context manager and iterator. Leaving the block cancels the far handler."""

    __slots__ = (
        "_ahead", "_ahead_bytes", "_asked", "_buffered", "_codec", "_done", "_end", "_failure", "_node", "_peer",
        "_quarter", "_ready", "_timeout", "_timer", "_waiter",
        "acked_at", "consumed", "id", "received", "reported", "window",
    )  # fmt: skip

    def __init__(
        self, node: Node, endpoint: str, actor: str, message: Any, timeout: float, window: int, trace: str
    ) -> None:
        self.id = 0
        self.window = window
        self.received = 0
        self.consumed = 0
        self.reported = 0
        self.acked_at = 0.0
        self._node = node
        self._codec = node.codec
        self._asked = (endpoint, actor, message, trace)
        self._timeout = timeout
        self._timer: Timer | None = None
        self._quarter = max(1, window // 4)
        self._peer: DialledPeer
        self._ready: deque[Item] = deque()
        self._buffered = 0
        self._ahead: dict[int, Item | End] = {}
        self._ahead_bytes = 0
        self._end: End | None = None
        self._failure: MeshError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._done = False

    async def __aenter__(self) -> StreamReader:
        endpoint, actor, message, trace = self._asked
        self._peer = self._node.peer(endpoint)
        self._peer.begin_stream(self, actor, message, self._timeout, trace)
        self._timer = self._peer.clock.call_later(self._timeout, self._expired)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading; the far handler is cancelled unless it has ended. Repeat-safe."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._done:
            self._done = True
            self._peer.end_stream(self, finished=self._end is not None)
        self._ready.clear()
        self._ahead.clear()

    def __aiter__(self) -> StreamReader:
        return self

    async def __anext__(self) -> Any:
        while not self._ready:
            if self._failure is not None:
                raise self._failure
            if self._end is not None:
                end = self._end
                self.close()
                if end.reason:
                    raise from_wire(end.reason, end.message)
                raise StopAsyncIteration
            if self._done:
                raise StopAsyncIteration
            if self._waiter is not None:
                raise RuntimeError("two tasks read one stream")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._read()

    def _read(self) -> Any:
        record = self._ready.popleft()
        weight = weight_of(record)
        self._buffered -= weight
        self.consumed += weight
        if self.consumed - self.reported >= self._quarter:
            self._peer.ack_now(self)
        try:
            return self._codec.decode(record.kind, record.body, record.raw)
        except MeshError as error:
            self._peer.metrics.refuse(error.reason)
            self.fail(error)
            raise

    # Called by the peer --------------------------------------------------------------------------------

    def take(self, record: Item | End) -> None:
        """An item or the end has arrived, perhaps again, perhaps early."""
        expected = self.received + 1
        if record.seq == expected:
            self._accept(record)
            while self._ahead and (early := self._ahead.pop(self.received + 1, None)) is not None:
                if isinstance(early, Item):
                    self._ahead_bytes -= weight_of(early)
                self._accept(early)
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)
        elif record.seq > expected:
            self._keep_early(record)
        else:
            self._peer.metrics.drop("duplicate_item")
        if self._end is not None:
            self._peer.ack_now(self)
        else:
            self._peer.ack_soon(self)

    def _accept(self, record: Item | End) -> None:
        self.received = record.seq
        if isinstance(record, End):
            self._end = record
            return
        self._ready.append(record)
        self._buffered += weight_of(record)
        if self._buffered > self.window and len(self._ready) > 1:
            self.fail(Malformed("the far side sent more than its credit"))

    def _keep_early(self, record: Item | End) -> None:
        if record.seq in self._ahead:
            self._peer.metrics.drop("duplicate_item")
            return
        weight = weight_of(record) if isinstance(record, Item) else 0
        # An honest writer cannot exceed this; what a dishonest one sends is simply not kept.
        if self._ahead and self._ahead_bytes + weight > self.window:
            self._peer.metrics.drop("beyond_window")
            return
        self._ahead[record.seq] = record
        self._ahead_bytes += weight

    def fail(self, error: MeshError) -> None:
        """The stream is over; what was received in order can still be read, then `error` is raised."""
        if self._failure is None and self._end is None:
            self._failure = error
        if self._timer is not None:
            self._timer.cancel()
        if not self._done:
            self._done = True
            self._peer.end_stream(self, finished=self._end is not None)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _expired(self) -> None:
        if not self._done and self._end is None:
            self.fail(DeadlineExceeded(f"stream not finished within {self._timeout:g} s"))
