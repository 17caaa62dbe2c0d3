"""The ZeroMQ socket of a blocking link (mesh/blocking.py). For one thread."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from functools import partial

import zmq

from mesh.address import Endpoint, require_keys
from mesh.errors import PeerLost
from mesh.security import FolderSecurity
from mesh.transport import Frame, MessageLimits
from mesh.transport.zmq_socket import Dealer, Pace, receive_frames, send_frames


class ZmqWire:
    """A DEALER, and another when its connection has ended. Implements mesh.blocking.Wire. Raises Insecure, and PeerLost
    when the system has no socket left."""

    now = staticmethod(time.monotonic)

    def __init__(self, endpoint: str, identity: bytes, keys: FolderSecurity | None, limits: MessageLimits) -> None:
        parsed = Endpoint.parse(endpoint)
        require_keys(parsed, keys is not None, "dial")
        curve = keys.client() if parsed.needs_keys and keys is not None else None
        self._timeout = -1
        self._max_frames = limits.frames
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connect = partial(Dealer, self._context, endpoint, identity, limits, curve)
        self._pace = Pace()
        self._retry_at = math.inf
        try:
            self._connection = self._connect()
        except zmq.ZMQError as error:
            self._context.term()
            raise PeerLost(f"no socket for {endpoint}: {error}") from error

    def send(self, frames: Sequence[Frame]) -> bool:
        if not self._is_up():
            return False
        try:
            send_frames(self._connection.socket, frames)
        except zmq.Again:
            return False
        return True

    def receive(self, timeout: float) -> Sequence[bytes] | None:
        milliseconds = math.ceil(timeout * 1000)
        if milliseconds != self._timeout:
            self._connection.socket.setsockopt(zmq.RCVTIMEO, milliseconds)
            self._timeout = milliseconds
        try:
            return receive_frames(self._connection.socket, self._max_frames, flags=0)
        except zmq.Again:
            return None

    def wait_until_open(self, timeout: float) -> bool:
        until = self.now() + timeout
        while not self._is_up():
            now = self.now()
            if now >= until:
                return False
            self._connection.news.poll(math.ceil(max(0.0, min(until, self._retry_at) - now) * 1000))
        return True

    def _is_up(self) -> bool:
        """Whether one can send. Takes the news of the connection, and makes another attempt when it is time."""
        connection = self._connection
        if not connection.over:
            connection.take_news()
            if connection.up:
                self._pace.reset()
            elif connection.over:
                # What has arrived can be read until then.
                self._retry_at = self.now() + self._pace.next()
        if self.now() >= self._retry_at:
            self._reopen()
        return self._connection.up

    def _reopen(self) -> None:
        """Another attempt; later when there is no socket left."""
        self._retry_at = self.now() + self._pace.next()
        with contextlib.suppress(zmq.ZMQError):
            connection = self._connect()
            self._connection.close()
            self._connection, self._timeout, self._retry_at = connection, -1, math.inf

    def close(self) -> None:
        self._connection.close(100)
        self._context.term()
