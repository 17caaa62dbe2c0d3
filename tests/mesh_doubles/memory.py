"""A network within one process: the interface of the ZeroMQ transport without sockets, with faults that are repeatable
by seed (tests/mesh_doubles/faults.py). With a FakeClock the tests decide when anything arrives.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

from mesh.address import Endpoint
from mesh.clock import Clock, SystemClock
from mesh.transport import Frame, LineOwner, Listener, Sent
from mesh_doubles.faults import Faults


class MemoryNetwork(Faults):
    """What MemoryTransports are joined by."""

    def __init__(self, seed: int = 0, *, clock: Clock | None = None, **faults: float) -> None:
        """`faults` are those of tests/mesh_doubles/faults.py."""
        super().__init__(seed, **faults)
        self._clock: Clock = clock or SystemClock()
        self._listeners: dict[str, Listener] = {}
        self._lines: set[MemoryLine] = set()
        self._cut: set[str] = set()
        self._held: set[str] = set()
        self._silent: set[str] = set()
        self._numbers = itertools.count(1)

    def transport(self) -> MemoryTransport:
        return MemoryTransport(self)

    # Faults ------------------------------------------------------------------------------------------------

    def cut(self, endpoint: str) -> None:
        """End the connections to an endpoint; both sides notice, as with sockets."""
        self._cut.add(endpoint)
        self._break(endpoint, "cut")

    def mend(self, endpoint: str) -> None:
        self._cut.discard(endpoint)
        self._connect_all(endpoint)

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
        listener = self._listeners.get(endpoint)
        if listener is not None:
            listener.writable()
        for line in list(self._lines):
            if line.endpoint == endpoint and line.up:
                line.owner.writable()

    # For transports ------------------------------------------------------------------------------------------

    def listen(self, endpoint: str, listener: Listener) -> None:
        if endpoint in self._listeners:
            raise OSError(f"{endpoint} is taken")
        self._listeners[endpoint] = listener
        self._connect_all(endpoint)

    def close(self, endpoint: str) -> None:
        self._listeners.pop(endpoint, None)
        self._break(endpoint, "closed")

    def listener(self, endpoint: str) -> Listener | None:
        """Who can be reached there now."""
        return None if endpoint in self._cut else self._listeners.get(endpoint)

    def is_full(self, endpoint: str) -> bool:
        return endpoint in self._held

    def carry(self, endpoint: str, deliver: Callable[[list[bytes]], None], frames: Sequence[Frame]) -> None:
        """Bring frames to their destination: once unless a fault is drawn, now or later."""
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
        listener = self._listeners.get(line.endpoint)
        if line.up and listener is not None:
            asyncio.get_running_loop().call_soon(listener.disconnected)

    def line(self, endpoint: str, routing_id: bytes) -> MemoryLine | None:
        for line in self._lines:
            if line.routing_id == routing_id and line.endpoint == endpoint and line.up:
                return line
        return None

    def _connect_all(self, endpoint: str) -> None:
        for line in list(self._lines):
            if line.endpoint == endpoint:
                line.try_connect()

    def _break(self, endpoint: str, why: str) -> None:
        for line in list(self._lines):
            if line.endpoint == endpoint and line.up:
                self._lines.discard(line)
                line.up = False
                line.owner.disconnected(why)
        listener = self._listeners.get(endpoint)
        if listener is not None:
            listener.disconnected()


class MemoryLine:
    """The dialling end of one connection. Implements mesh.transport.DialledLine."""

    def __init__(self, network: MemoryNetwork, endpoint: str, routing_id: bytes, owner: LineOwner) -> None:
        self.endpoint = endpoint
        self.routing_id = routing_id
        self.owner = owner
        self.up = False
        self._network = network
        self._closed = False

    def try_connect(self) -> None:
        if not self.up and not self._closed and self._network.listener(self.endpoint) is not None:
            self.up = True
            self.owner.connected()

    def send(self, frames: Sequence[Frame]) -> Sent:
        if not self.up or self._closed or self._network.is_full(self.endpoint):
            return Sent.FULL
        self._network.carry(self.endpoint, self._arrive_at_listener, frames)
        return Sent.SENT

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._network.remove(self)
            self.up = False

    def _arrive_at_listener(self, frames: list[bytes]) -> None:
        listener = self._network.listener(self.endpoint)
        if listener is not None:
            listener.received(self.routing_id, frames)

    def arrive(self, frames: list[bytes]) -> None:
        if self.up and not self._closed:
            self.owner.received(frames)


class MemoryTransport:
    """One node's end of a MemoryNetwork. Implements mesh.transport.Transport."""

    def __init__(self, network: MemoryNetwork) -> None:
        self._network = network
        self._endpoint: str | None = None
        self._lines: list[MemoryLine] = []

    async def bind(self, endpoint: str, listener: Listener) -> str:
        Endpoint.parse(endpoint)
        self._endpoint = endpoint.replace("*", str(self._network.next_number()))
        self._network.listen(self._endpoint, listener)
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

    async def close(self, linger: float) -> None:
        for line in self._lines:
            line.close()
        if self._endpoint is not None:
            self._network.close(self._endpoint)
            self._endpoint = None
