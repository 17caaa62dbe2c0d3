"""The interface between a node and what moves its bytes: lists of frames, in and out, without blocking.

A transport knows addresses, routing ids and frames, no envelopes, actors or epochs. On one connection messages arrive
once and in order, until it ends; what is then on its way is lost. It never waits: what it cannot take now it answers
with FULL or GONE. One side binds, the other dials a *line*; answers go back by the line's routing id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

Frame = bytes | bytearray | memoryview


class Sent(Enum):
    """The result of a send. After FULL the owner is called back (`writable`) and tries again."""

    SENT = 1
    FULL = 2
    GONE = 3


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Of one message. What exceeds them is refused before it is decoded."""

    frame_bytes: int = 16 * 1024 * 1024
    frames: int = 256  # raw frames behind a bundle
    queued_messages: int = 256  # bundles a socket holds, each way


class Listener(Protocol):
    """Who is behind a bound address (the node)."""

    def received(self, routing_id: bytes, frames: Sequence[bytes]) -> None:
        """A message from a dialler. The bytes are unchecked; must not raise."""
        ...

    def refused(self, reason: str) -> None:
        """The transport dropped something by its own rules; for counting."""
        ...

    def writable(self) -> None:
        """Something that was FULL may fit now."""
        ...

    def disconnected(self) -> None:
        """A dialler's connection has ended. Which one is not known: sending to it answers GONE."""
        ...


class LineOwner(Protocol):
    """Who is at the dialling end (a dialled peer)."""

    def received(self, frames: Sequence[bytes]) -> None: ...

    def refused(self, reason: str) -> None: ...

    def writable(self) -> None: ...

    def connected(self) -> None:
        """The line has its connection. Until then the transport tries again and again."""
        ...

    def disconnected(self, why: str) -> None:
        """The connection has ended, and what arrived before has been handed over. The line is of no more use."""
        ...


class DialledLine(Protocol):
    """The dialling end of one connection."""

    def send(self, frames: Sequence[Frame]) -> Sent: ...

    def close(self) -> None:
        """Forget the connection; nothing is called back afterwards. Repeat-safe."""
        ...


class Transport(Protocol):
    """One process's sockets of one kind."""

    async def bind(self, endpoint: str, listener: Listener) -> str:
        """Listen; the address with wildcards resolved. Raises Insecure for an address that needs keys."""
        ...

    def dial(self, endpoint: str, routing_id: bytes, owner: LineOwner) -> DialledLine:
        """Connect in the background. Raises Insecure for an address that needs keys, NotReached without a socket."""
        ...

    def reply(self, routing_id: bytes, frames: Sequence[Frame]) -> Sent:
        """To a dialler."""
        ...

    async def close(self, linger: float) -> None:
        """Close everything; bytes already handed over get up to `linger` seconds to leave."""
        ...
