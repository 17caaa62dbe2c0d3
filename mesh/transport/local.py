"""The line from a node to itself: refs to local actors take the same path as all others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mesh.transport import Frame, LineOwner, Listener, Sent


class Loopback:
    """Hands frames over at the next loop tick. Also a mesh.transport.Line."""

    def __init__(self) -> None:
        self.routing_id: bytes | None = None
        self._listener: Listener | None = None
        self._owner: LineOwner | None = None

    def dial(self, listener: Listener, routing_id: bytes, owner: LineOwner) -> Loopback:
        self.routing_id, self._listener, self._owner = routing_id, listener, owner
        asyncio.get_running_loop().call_soon(owner.connected)
        return self

    def send(self, frames: Sequence[Frame]) -> Sent:
        asyncio.get_running_loop().call_soon(self._deliver_to_listener, self.routing_id, list(map(bytes, frames)))
        return Sent.SENT

    def reply(self, frames: Sequence[Frame]) -> Sent:
        asyncio.get_running_loop().call_soon(self._deliver_to_owner, self.routing_id, list(map(bytes, frames)))
        return Sent.SENT

    def close(self) -> None:
        self.routing_id = self._listener = self._owner = None

    def _deliver_to_listener(self, routing_id: bytes | None, frames: list[bytes]) -> None:
        if self._listener is not None and routing_id is not None and self.routing_id == routing_id:
            self._listener.received(routing_id, frames)

    def _deliver_to_owner(self, routing_id: bytes | None, frames: list[bytes]) -> None:
        if self._owner is not None and self.routing_id == routing_id:
            self._owner.received(frames)
