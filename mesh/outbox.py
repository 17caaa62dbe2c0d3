"""What waits to be sent to one peer. Records put during a loop tick leave together, as one bundle, at its end.

Bounded in records and bytes; a full outbox says so and keeps nothing. Knows no sockets: it is given a function that
sends frames, and is told (`flush`) when sending may work again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from mesh.envelope import BUNDLE_BYTES, BUNDLE_RECORDS, MeshRecord, encode_bundle
from mesh.transport import Frame, Sent

OUTBOX_RECORDS = 16384
OUTBOX_BYTES = 16 * 1024 * 1024


class Outbox:
    """`send` moves frames. `control` gives the records that go in front of the next bundle. `gone` is called when the
    transport says that the peer is not connected."""

    __slots__ = (
        "_control", "_gone", "_held", "_limit_bytes", "_limit_records", "_loop", "_queue", "_scheduled", "_send",
        "bytes", "closed", "epoch", "room_waiters", "to_epoch",
    )  # fmt: skip

    def __init__(
        self,
        epoch: int,
        send: Callable[[Sequence[Frame]], Sent],
        control: Callable[[], list[MeshRecord]],
        gone: Callable[[], None],
        records: int = OUTBOX_RECORDS,
        bytes: int = OUTBOX_BYTES,
    ) -> None:
        self.epoch = epoch
        self.to_epoch = 0
        self.bytes = 0
        self.closed = False
        self.room_waiters: list[asyncio.Future[None]] = []
        self._loop = asyncio.get_running_loop()
        self._send = send
        self._control = control
        self._gone = gone
        self._limit_records = records
        self._limit_bytes = bytes
        self._queue: deque[tuple[MeshRecord, int, Sequence[Frame]]] = deque()
        self._held: list[Frame] | None = None
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._queue) + (self._held is not None)

    @property
    def has_room(self) -> bool:
        return self.bytes < self._limit_bytes and len(self._queue) < self._limit_records

    def put(self, record: MeshRecord, weight: int, raw: Sequence[Frame] = (), reserve: int = 1) -> bool:
        """Queue a record and its raw frames for the end of this tick; False when there is no room. `reserve` multiplies
        the limits: what ends a call may use twice the room of what begins one."""
        if (
            self.closed
            or self.bytes >= self._limit_bytes * reserve
            or len(self._queue) >= self._limit_records * reserve
        ):
            return False
        self._queue.append((record, weight, raw))
        self.bytes += weight
        self.schedule()
        return True

    def schedule(self) -> None:
        """Flush at the end of this tick."""
        if not self._scheduled and not self.closed:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send until nothing is left or the transport takes no more."""
        self._scheduled = False
        while not self.closed:
            if self._held is None:
                batch = self._control()
                raw = self._take_some(batch)
                if not batch:
                    break
                self._held = encode_bundle(self.epoch, self.to_epoch, batch, raw)
            sent = self._send(self._held)
            if sent is not Sent.SENT:
                if sent is Sent.GONE:
                    self._gone()
                return
            self._held = None
        self._wake()

    def clear(self) -> None:
        """Forget everything that waits: it was meant for a peer that is lost."""
        self._queue.clear()
        self._held = None
        self.bytes = 0
        self._wake()

    def close(self) -> None:
        self.closed = True
        self.clear()

    def _take_some(self, batch: list[MeshRecord]) -> list[Frame]:
        """Fills the batch; the raw frames of what it takes."""
        queue, frames = self._queue, list[Frame]()
        taken = 0
        while queue and len(batch) < BUNDLE_RECORDS:
            record, weight, raw = queue[0]
            if taken and taken + weight > BUNDLE_BYTES:
                break
            queue.popleft()
            taken += weight
            batch.append(record)
            frames += raw
        self.bytes -= taken
        return frames

    def _wake(self) -> None:
        waiters, self.room_waiters = self.room_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
