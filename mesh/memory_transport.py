"""A network within one process: same seam as ZeroMQ, no sockets, and faults on request, repeatable by seed.

Knows frames and endpoints; what is lost is drawn in mesh/faults.py. With a FakeClock the tests decide when anything
arrives.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

from mesh.address import Endpoint
from mesh.clock import Clock, SystemClock
from mesh.faults import Faults
from mesh.transport import Door, Frame, LineOwner, Sent


class MemoryNetwork(Faults):
    """The air between MemoryTransports."""

    def __init__(self, seed: int = 0, *, clock: Clock | None = None, **faults: float) -> None:
        """`faults` are those of mesh/faults.py."""
        super().__init__(seed, **faults)
        self._clock: Clock = clock or SystemClock()
        self._doors: dict[str, Door] = {}
        self._lines: set[MemoryLine] = set()
        self._cut: set[str] = set()
        self._held: set[str] = set()
        self._silent: set[str] = set()
        self._numbers = itertools.count(1)

    def transport(self) -> MemoryTransport:
        return MemoryTransport(self)

    # Faults ------------------------------------------------------------------------------------------------

    def cut(self, endpoint: str) -> None:
        """Break the connections to an endpoint; both sides notice, as with sockets."""
        self._cut.add(endpoint)
        self._break(endpoint, "cut")

    def mend(self, endpoint: str) -> None:
        self._cut.discard(endpoint)
        for line in list(self._lines):
            if line.endpoint == endpoint:
                line.try_connect()

    def silence(self, endpoint: str) -> None:
        """Swallow everything to and from an endpoint without a word, as a stopped process does."""
        self._silent.add(endpoint)

    def unsilence(self, endpoint: str) -> None:
        self._silent.discard(endpoint)

    def hold(self, endpoint: str) -> None:
        """Be full in both directions until `release`."""
        self._held.add(endpoint)

    def release(self, endpoint: str) -> None:
        self._held.discard(endpoint)
        door = self._doors.get(endpoint)
        if door is not None:
            door.writable()
        for line in list(self._lines):
            if line.endpoint == endpoint and line.up:
                line.owner.writable()

    # For transports ------------------------------------------------------------------------------------------

    def open_door(self, endpoint: str, door: Door) -> None:
        if endpoint in self._doors:
            raise OSError(f"{endpoint} is taken")
        self._doors[endpoint] = door
        for line in list(self._lines):
            if line.endpoint == endpoint:
                line.try_connect()

    def close_door(self, endpoint: str) -> None:
        self._doors.pop(endpoint, None)
        self._break(endpoint, "closed")

    def door(self, endpoint: str) -> Door | None:
        """Who can be reached there now."""
        return None if endpoint in self._cut else self._doors.get(endpoint)

    def is_full(self, endpoint: str) -> bool:
        return endpoint in self._held

    def carry(self, endpoint: str, deliver: Callable[[list[bytes]], None], frames: Sequence[Frame]) -> None:
        """Bring frames to where they go, or not, once or twice, now or later."""
        if endpoint in self._silent:
            self.dropped += 1
            return
        for late, copy in self.arrivals(frames):
            if late:
                self._clock.call_later(late, deliver, copy)
            else:
                asyncio.get_running_loop().call_soon(deliver, copy)

    def next_number(self) -> int:
        return next(self._numbers)

    def add(self, line: MemoryLine) -> None:
        self._lines.add(line)
        asyncio.get_running_loop().call_soon(line.try_connect)

    def remove(self, line: MemoryLine) -> None:
        self._lines.discard(line)
        door = self._doors.get(line.endpoint)
        if line.up and door is not None:
            asyncio.get_running_loop().call_soon(door.disconnected)

    def line(self, endpoint: str, routing_id: bytes) -> MemoryLine | None:
        for line in self._lines:
            if line.routing_id == routing_id and line.endpoint == endpoint and line.up:
                return line
        return None

    def _break(self, endpoint: str, why: str) -> None:
        for line in list(self._lines):
            if line.endpoint == endpoint and line.up:
                line.up = False
                line.owner.disconnected(why)
        door = self._doors.get(endpoint)
        if door is not None:
            door.disconnected()


class MemoryLine:
    """The dialling end. Implements mesh.transport.Line."""

    def __init__(self, network: MemoryNetwork, endpoint: str, routing_id: bytes, owner: LineOwner) -> None:
        self.endpoint = endpoint
        self.routing_id = routing_id
        self.owner = owner
        self.up = False
        self._network = network
        self._closed = False

    def try_connect(self) -> None:
        if not self.up and not self._closed and self._network.door(self.endpoint) is not None:
            self.up = True
            self.owner.connected()

    def send(self, frames: Sequence[Frame]) -> Sent:
        if not self.up or self._closed or self._network.is_full(self.endpoint):
            return Sent.FULL
        self._network.carry(self.endpoint, self._arrive_at_door, frames)
        return Sent.SENT

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._network.remove(self)
            self.up = False

    def _arrive_at_door(self, frames: list[bytes]) -> None:
        door = self._network.door(self.endpoint)
        if door is not None:
            door.received(self.routing_id, frames)

    def arrive(self, frames: list[bytes]) -> None:
        if self.up and not self._closed:
            self.owner.received(frames)


class MemoryTransport:
    """One node's end of a MemoryNetwork. Implements mesh.transport.Transport."""

    def __init__(self, network: MemoryNetwork) -> None:
        self._network = network
        self._endpoint: str | None = None
        self._lines: list[MemoryLine] = []

    async def bind(self, endpoint: str, door: Door) -> str:
        Endpoint.parse(endpoint)
        self._endpoint = endpoint.replace("*", str(self._network.next_number()))
        self._network.open_door(self._endpoint, door)
        return self._endpoint

    def dial(self, endpoint: str, routing_id: bytes, owner: LineOwner) -> MemoryLine:
        line = MemoryLine(self._network, endpoint, routing_id, owner)
        self._lines.append(line)
        self._network.add(line)
        return line

    def reply(self, routing_id: bytes, frames: Sequence[Frame]) -> Sent:
        if self._endpoint is None:
            return Sent.GONE
        line = self._network.line(self._endpoint, routing_id)
        if line is None:
            return Sent.GONE
        if self._network.is_full(self._endpoint):
            return Sent.FULL
        self._network.carry(self._endpoint, line.arrive, frames)
        return Sent.SENT

    def stay_awake(self, routing_id: bytes, seconds: float) -> None:
        """Nobody sleeps here."""

    async def close(self, linger: float) -> None:
        for line in self._lines:
            line.close()
        if self._endpoint is not None:
            self._network.close_door(self._endpoint)
            self._endpoint = None
