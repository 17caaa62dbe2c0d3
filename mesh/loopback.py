"""The line from a node to its own door: refs to local actors take the same path as all others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mesh.transport import Door, Frame, LineOwner, Sent


class Loopback:
    """Hands frames over at the next loop tick. Also a mesh.transport.Line."""

    def __init__(self) -> None:
        self.routing_id: bytes | None = None
        self._door: Door | None = None
        self._owner: LineOwner | None = None

    def dial(self, door: Door, routing_id: bytes, owner: LineOwner) -> Loopback:
        self.routing_id, self._door, self._owner = routing_id, door, owner
        asyncio.get_running_loop().call_soon(owner.connected)
        return self

    def send(self, frames: Sequence[Frame]) -> Sent:
        asyncio.get_running_loop().call_soon(self._deliver_to_door, list(map(bytes, frames)))
        return Sent.SENT

    def reply(self, frames: Sequence[Frame]) -> Sent:
        asyncio.get_running_loop().call_soon(self._deliver_to_owner, list(map(bytes, frames)))
        return Sent.SENT

    def close(self) -> None:
        self.routing_id = self._door = self._owner = None

    def _deliver_to_door(self, frames: list[bytes]) -> None:
        if self._door is not None and self.routing_id is not None:
            self._door.received(self.routing_id, frames)

    def _deliver_to_owner(self, frames: list[bytes]) -> None:
        if self._owner is not None:
            self._owner.received(frames)
