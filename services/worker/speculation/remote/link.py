"""The engine's thread asks an actor through the node's event loop and waits for the answer without one.

    engine's thread    send ──▶ event loop  ── ask ───▶  proposer
                       wait ◀── tell        ◀─ answer ──

It has no connection of its own: the node's is used. Nothing waits for one: an ask without a connection fails at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from mesh.errors import DeadlineExceeded, MeshError, NotReached
from mesh.node import Node

log = logging.getLogger("specmesh.worker")

# Seconds until the mesh ends an ask. The engine gives up sooner, but reads an answer that came late during a long step.
LONGEST_ASK = 60.0


class Ticket:
    """An ask that was sent. `tell` and `cancel` belong to the event loop's thread, the rest to the engine's."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.arrived = threading.Event()
        self.cancel: Callable[[], None] = lambda: None

    def tell(self, answer: Any) -> None:
        self.answer = answer
        self.arrived.set()


class LoopLink:
    """Implements client.py's Link. `post` calls a function in the thread of the node's event loop."""

    def __init__(self, node: Node, endpoint: str, actor: str, post: Callable[..., None]) -> None:
        self._node = node
        self._endpoint = endpoint
        self._actor = actor
        self._post = post
        post(self._connect)

    def send(self, message: Any) -> Ticket:
        ticket = Ticket()
        self._post(self._ask, message, ticket)
        return ticket

    def arrived(self, ticket: Ticket) -> bool:
        return ticket.arrived.is_set()

    def receive(self, ticket: Ticket, timeout: float) -> Any:
        if not ticket.arrived.wait(timeout):
            self.give_up(ticket)
            raise DeadlineExceeded(f"no answer from {self._endpoint} within {timeout:g} s")
        if isinstance(ticket.answer, Exception):
            raise ticket.answer
        return ticket.answer

    def give_up(self, ticket: Ticket) -> None:
        # Only the loop's thread knows how: the ask may not have been made yet.
        self._post(lambda: ticket.cancel())

    # In the thread of the event loop ------------------------------------------------------------------------

    def _connect(self) -> None:
        try:
            self._node.peer(self._endpoint).connect()
        except MeshError as error:
            log.warning("the proposer at %s can't be reached: %s", self._endpoint, error)

    def _ask(self, message: Any, ticket: Ticket) -> None:
        try:
            peer = self._node.peer(self._endpoint)
            if not peer.reachable:
                peer.connect()
                raise NotReached(f"no connection to {self._endpoint}")
            id = peer.begin_ask(self._actor, message, LONGEST_ASK, ticket.tell)
        # Whatever it is: somebody waits.
        except Exception as error:
            ticket.tell(error)
        else:
            ticket.cancel = partial(peer.cancel_ask, id)
            # Don't wait for the end of the tick.
            peer.outbox.flush()
