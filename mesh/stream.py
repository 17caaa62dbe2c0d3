"""Both ends of a stream: items exactly once and in order, with flow control by credits counted in bytes.

Rule 1: at most `window` bytes are unread; one item larger than the window is sent when nothing else is unread.
Rule 2: a stream lives as long as its connection. Items are numbered; a missing one ends the stream with an error.
Rule 3: both ends always end: by End, by Cancel, by the deadline or because the peer is lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mesh.clock import Clock, Timer
from mesh.codec import Codec
from mesh.envelope import End, Item
from mesh.errors import DeadlineExceeded, Malformed, MeshError, NotRunning, PeerLost, from_wire
from mesh.metrics import BusMetrics
from mesh.outbox import Outbox
from mesh.transport import Frame

DEFAULT_WINDOW = 65536
# What an item costs beside its body, so that empty items are bounded too.
ITEM_WEIGHT = 16


def weight_of(record: Item, raw: Sequence[Frame]) -> int:
    return len(record.body) + ITEM_WEIGHT + (sum(map(len, raw)) if raw else 0)


class WriterOwner(Protocol):
    """What a writer needs of the peer it belongs to."""

    outbox: Outbox

    def forget_writer(self, id: int) -> object: ...

    def put_last(self, record: End) -> object:
        """Queue the end of a stream."""
        ...


class StreamWriter:
    """The handler's end. Use it from the event loop only."""

    __slots__ = (
        "_codec", "_consumed", "_failure", "_metrics", "_needed", "_owner", "_sent", "_seq", "_waiters",
        "granted", "id", "window",
    )  # fmt: skip

    def __init__(self, owner: WriterOwner, id: int, window: int, codec: Codec, metrics: BusMetrics) -> None:
        self.id = id
        self.window = self.granted = max(1, window)
        self._owner = owner
        self._codec = codec
        self._metrics = metrics
        self._seq = 0
        self._sent = 0
        self._consumed = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._failure: MeshError | None = None
        self._needed = 0  # credit the last refused offer would have taken

    @property
    def credit(self) -> int:
        """Bytes that may be sent now."""
        return max(0, self.window - self.outstanding)

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
        record = Item(self.id, self._seq + 1, kind, body, len(raw))
        weight = weight_of(record, raw)
        if unread + weight > self.window and unread:
            return weight
        if not self._owner.outbox.put(record, weight, raw):
            return 1
        self._seq += 1
        self._sent += weight
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
        """The handler has returned: the End goes out, and the writer is forgotten."""
        if self._failure is None:
            self._failure = NotRunning("this stream has ended")
            self._owner.put_last(End(self.id, self._seq + 1, reason, message))
            self._metrics.sent("end", ITEM_WEIGHT)
        self._owner.forget_writer(self.id)

    def credited(self, consumed: int) -> None:
        """The reader has read `consumed` bytes so far."""
        if self._consumed < consumed <= self._sent:
            self._consumed = consumed
            self._wake()

    def fail(self, error: MeshError) -> None:
        """Nobody reads any more: what the handler does next with this stream raises."""
        if self._failure is None:
            self._failure = error
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class ReaderOwner(Protocol):
    """What a reader needs of the peer it reads from."""

    codec: Codec
    clock: Clock
    metrics: BusMetrics

    def begin_stream(self, stream: StreamReader, actor: str, message: Any, timeout: float) -> None: ...

    def end_stream(self, stream: StreamReader, finished: bool) -> None:
        """The reader is done; unless it has seen the End, the far handler is to be cancelled."""
        ...

    def credit(self, stream: StreamReader, at_once: bool) -> None:
        """Tell the writer how much has been read."""
        ...


class StreamReader:
    """The caller's end: an async context manager and iterator. Leaving the block cancels the far handler."""

    __slots__ = (
        "_asked", "_buffered", "_connect", "_done", "_end", "_failure", "_peer", "_quarter", "_ready", "_received",
        "_timeout", "_timer", "_waiter", "consumed", "id", "reported", "window",
    )  # fmt: skip

    def __init__(
        self,
        connect: Callable[[], ReaderOwner],
        actor: str,
        message: Any,
        timeout: float,
        window: int,
    ) -> None:
        self.id = 0
        self.window = window
        self.consumed = 0
        self.reported = 0  # of `consumed`: what the writer was told
        self._connect = connect
        self._peer: ReaderOwner
        self._asked = (actor, message, timeout)
        self._timeout = timeout
        self._timer: Timer | None = None
        self._quarter = max(1, window // 4)
        self._received = 0  # the sequence number of the last item
        self._ready: deque[tuple[Item, Sequence[Frame]]] = deque()
        self._buffered = 0
        self._end: End | None = None
        self._failure: MeshError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._done = False

    async def __aenter__(self) -> StreamReader:
        self._peer = self._connect()
        self._peer.begin_stream(self, *self._asked)
        self._timer = self._peer.clock.call_later(self._timeout, self._expired)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading; the far handler is cancelled unless it has ended. Repeat-safe."""
        self._finish()
        self._ready.clear()

    def __aiter__(self) -> StreamReader:
        return self

    async def __anext__(self) -> Any:
        while not self._ready:
            if self._failure is not None:
                raise self._failure
            if self._end is not None and self._end.reason:
                raise from_wire(self._end.reason, self._end.message)
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
        record, raw = self._ready.popleft()
        weight = weight_of(record, raw)
        self._buffered -= weight
        self.consumed += weight
        if not self._done:
            self._peer.credit(self, at_once=self.consumed - self.reported >= self._quarter)
        try:
            return self._peer.codec.decode(record.kind, record.body, raw)
        except MeshError as error:
            self._peer.metrics.refuse(error.reason)
            self.fail(error)
            raise

    # Called by the peer --------------------------------------------------------------------------------

    def take(self, record: Item | End, raw: Sequence[Frame] = ()) -> None:
        """The next item, or the end, has arrived."""
        if self._done:
            return
        self._received += 1
        if record.seq != self._received:
            self.fail(PeerLost(f"item {self._received} of a stream is missing"))
        elif isinstance(record, End):
            self._end = record
            self._finish()
        else:
            self._ready.append((record, raw))
            self._buffered += weight_of(record, raw)
            if self._buffered > self.window and len(self._ready) > 1:
                self.fail(Malformed("the far side sent more than its credit"))
        self._wake()

    def fail(self, error: MeshError) -> None:
        """The stream is over; what was received can still be read, then `error` is raised."""
        if self._failure is None and self._end is None:
            self._failure = error
        self._finish()
        self._wake()

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._done:
            self._done = True
            self._peer.end_stream(self, finished=self._end is not None)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _expired(self) -> None:
        self.fail(DeadlineExceeded(f"stream not finished within {self._timeout:g} s"))
