"""The seam between the node and what moves its bytes: lists of frames, in and out, without blocking.

A transport knows addresses, routing ids and frames. It does not know envelopes, actors or epochs, promises
neither delivery nor order, and never waits: what cannot be taken now is answered FULL or GONE.
One side binds a *door*, the other dials a *line* to it; answers go back through the door by routing id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

Frame = bytes | bytearray | memoryview


class Sent(Enum):
    """What became of a send. After FULL the owner is called back (`writable`) and tries again."""

    SENT = 1
    FULL = 2
    GONE = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """What one message may cost. Everything above is refused before it is decoded."""

    frame_bytes: int = 16 * 1024 * 1024
    frames: int = 256  # raw frames behind a bundle
    queued_messages: int = 256  # bundles a socket holds, each way


@dataclass(frozen=True, slots=True)
class CurveServer:
    """Keys of a bound address, as Z85 text (40 bytes), and who may connect."""

    public_key: bytes
    secret_key: bytes
    allowed: frozenset[bytes]  # public keys of clients, Z85
    domain: str = "specmesh"


@dataclass(frozen=True, slots=True)
class CurveClient:
    """Keys of a dialled address, as Z85 text."""

    public_key: bytes
    secret_key: bytes
    server_key: bytes


class Security(Protocol):
    """Where keys come from. mesh/security.py reads them from a folder."""

    def server(self) -> CurveServer:
        """Called at every bind of an address that leaves the host. Raises Insecure when there are no keys."""
        ...

    def client(self, endpoint: str) -> CurveClient:
        """Called at every dial of such an address. Raises Insecure when there are no keys for it."""
        ...


class Door(Protocol):
    """Who listens behind a bound address (the node)."""

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
        """Some dialler's connection ended; which one is not known: sending to it answers GONE."""
        ...


class LineOwner(Protocol):
    """Who listens at the dialling end (a dialled peer)."""

    def received(self, frames: Sequence[bytes]) -> None: ...

    def refused(self, reason: str) -> None: ...

    def writable(self) -> None: ...

    def connected(self) -> None:
        """A connection stands (again). The far process may be another than before."""
        ...

    def disconnected(self, why: str) -> None:
        """The connection ended or could not be made; the transport keeps trying by itself."""
        ...


class Line(Protocol):
    """The dialling end of a connection."""

    def send(self, frames: Sequence[Frame]) -> Sent: ...

    def close(self) -> None:
        """Forget the connection; nothing is called back afterwards. Repeat-safe."""
        ...


class Transport(Protocol):
    """One process's sockets of one kind."""

    async def bind(self, endpoint: str, door: Door) -> str:
        """Listen; the address with wildcards resolved. Raises Insecure for an address that needs keys."""
        ...

    def dial(self, endpoint: str, routing_id: bytes, owner: LineOwner) -> Line:
        """Connect in the background. Raises Insecure for an address that needs keys."""
        ...

    def reply(self, routing_id: bytes, frames: Sequence[Frame]) -> Sent:
        """Through the door to a dialler."""
        ...

    def stay_awake(self, routing_id: bytes, seconds: float) -> None:
        """A dialler says something within so many seconds, and its answer is urgent. A hint."""
        ...

    async def close(self, linger: float) -> None:
        """Close everything; bytes already handed over get up to `linger` seconds to leave."""
        ...
