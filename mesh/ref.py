"""The address of an actor, here or elsewhere: an endpoint and a name. Holds no connection."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from mesh.stream import DEFAULT_WINDOW, ReaderOwner, StreamReader


class Peer(ReaderOwner, Protocol):
    """A connection to the node behind an endpoint."""

    async def ask(self, actor: str, message: Any, timeout: float) -> Any: ...


class CallingNode(Protocol):
    """The node a ref belongs to."""

    def peer(self, endpoint: str) -> Peer: ...


class Ref:
    """Cheap to make and to compare; the node keeps the connection behind it."""

    __slots__ = ("_node", "actor", "endpoint")

    def __init__(self, node: CallingNode, endpoint: str, actor: str) -> None:
        self._node = node
        self.endpoint = endpoint
        self.actor = actor

    async def ask(self, message: Any, *, timeout: float) -> Any:
        """The answer. Raises what mesh/errors.py lists; cancelling this cancels the far handler."""
        return await self._node.peer(self.endpoint).ask(self.actor, message, timeout)

    def stream(self, message: Any, *, timeout: float, window: int = DEFAULT_WINDOW) -> StreamReader:
        """Opens when entered; leaving the block cancels the far handler unless it has ended."""
        return StreamReader(partial(self._node.peer, self.endpoint), self.actor, message, timeout, window)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and (self.endpoint, self.actor) == (other.endpoint, other.actor)

    def __hash__(self) -> int:
        return hash((self.endpoint, self.actor))

    def __repr__(self) -> str:
        return f"Ref({self.endpoint} {self.actor})"
