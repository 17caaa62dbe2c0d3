"""What an actor is: tables of message types and handlers. What runs actors is mesh/cell.py."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import msgspec

from mesh.clock import Clock
from mesh.codec import Codec
from mesh.metrics import BusMetrics
from mesh.ref import Ref


class Call(msgspec.Struct, eq=False):
    """Who calls, and how long they wait."""

    peer: str
    epoch: int
    deadline: float
    _clock: Clock

    def deadline_left(self) -> float:
        """Seconds the caller still waits."""
        return max(0.0, self.deadline - self._clock.now())


class Home(Protocol):
    """What an actor may use of the node it runs on (mesh/node.py)."""

    name: str
    epoch: int
    endpoint: str
    codec: Codec
    clock: Clock
    metrics: BusMetrics

    def ref(self, endpoint: str, actor: str) -> Ref: ...


class Actor:
    """Subclass and fill the tables: message type -> name of the method that handles it.

    Methods of `handlers` and `streams` are coroutines. Those of `answers` are plain functions, called straight from the
    loop that reads the socket: no mailbox, no task, and nothing can cancel them. For work of microseconds.
    """

    handlers: ClassVar[dict[type[Any], str]] = {}
    answers: ClassVar[dict[type[Any], str]] = {}
    streams: ClassVar[dict[type[Any], str]] = {}
    mailbox_size: int = 1024
    mailbox_bytes: int = 64 * 1024 * 1024
    concurrency: int = 1
    max_streams: int = 1024

    node: Home
    ref: Ref

    async def on_start(self) -> None:
        """Before the first message; an exception makes `spawn` fail."""

    async def on_stop(self) -> None:
        """After the last handler has ended."""
