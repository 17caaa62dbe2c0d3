"""ZeroMQ: one ROUTER bound, one DEALER for each connection dialled, both read straight from the event loop.

Knows sockets, options and CURVE; knows no envelopes. The loop watches each socket's file descriptor, which is
edge-triggered: after every wake-up, and after every send, the socket is asked again whether it has mail.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial

import zmq
from zmq.utils import z85

from mesh.address import Endpoint, require_keys
from mesh.errors import NotReached
from mesh.security import CurveServer, FolderSecurity
from mesh.transport import Frame, LineOwner, Listener, MessageLimits, Sent
from mesh.transport.zmq_socket import (
    EVENTS,
    HANDSHAKE_FAILED,
    POLLIN,
    POLLOUT,
    Dealer,
    Pace,
    event_of,
    news_of,
    receive_frames,
    send_frames,
    set_options,
)

log = logging.getLogger("mesh")

# Messages read in one go before the loop gets its turn.
READ_BUDGET = 16


class ZmqTransport:
    """Implements mesh.transport.Transport. One event loop, one context, one node."""

    def __init__(self, *, security: FolderSecurity | None = None, limits: MessageLimits | None = None) -> None:
        self._security = security
        self._limits = limits or MessageLimits()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._listener: _ZmqListener | None = None
        self._lines: set[ZmqLine] = set()
        self._gate: _Gate | None = None

    async def bind(self, endpoint: str, listener: Listener) -> str:
        parsed = Endpoint.parse(endpoint)
        require_keys(parsed, self._security is not None, "bind")
        socket = self._context.socket(zmq.ROUTER)
        try:
            set_options(socket, endpoint, self._limits)
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            if parsed.needs_keys:
                assert self._security is not None
                self._lock(socket, self._security.server(), listener)
            socket.bind(f"{endpoint[:-1]}*" if endpoint.endswith(":0") else endpoint)
        except BaseException:
            socket.close(0)
            raise
        bound = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        resolved = bound.rstrip(b"\0").decode()
        if parsed.scheme == "ipc" and not parsed.rest.startswith(("@", "*")):
            os.chmod(parsed.rest, 0o600)
        self._listener = _ZmqListener(self._context, socket, listener, self._limits)
        return resolved

    def dial(self, endpoint: str, routing_id: bytes, owner: LineOwner) -> ZmqLine:
        parsed = Endpoint.parse(endpoint)
        require_keys(parsed, self._security is not None, "dial")
        keys = self._security.client() if parsed.needs_keys and self._security else None
        connect = partial(Dealer, self._context, endpoint, routing_id, self._limits, keys)
        try:
            line = ZmqLine(connect, owner, self._limits.frames, self._lines.discard)
        except zmq.ZMQError as error:
            raise NotReached(f"no socket for {endpoint}: {error}") from error
        self._lines.add(line)
        return line

    def reply(self, routing_id: bytes, frames: Sequence[Frame]) -> Sent:
        return Sent.GONE if self._listener is None else self._listener.reply(routing_id, frames)

    async def close(self, linger: float) -> None:
        milliseconds = int(linger * 1000)
        for line in list(self._lines):
            line.close(milliseconds)
        if self._listener is not None:
            self._listener.close(milliseconds)
            self._listener = None
        if self._gate is not None:
            self._gate.close()
            self._gate = None
        # Waits for the lingering bytes, so not on the loop.
        await asyncio.get_running_loop().run_in_executor(None, self._context.term)

    def _lock(self, socket: zmq.Socket[bytes], keys: CurveServer, listener: Listener) -> None:
        """Only clients on the list get through the handshake."""
        if self._gate is None:
            self._gate = _Gate(self._context, listener)
        self._gate.allow(keys.domain, keys.allowed)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public_key)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret_key)
        socket.setsockopt(zmq.ZAP_DOMAIN, keys.domain.encode())


class _Watched:
    """A socket read from the event loop. `on_message` gets the frames, `on_writable` follows a FULL."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        max_frames: int,
        on_message: Callable[[list[bytes]], None],
        on_refused: Callable[[str], None],
        on_writable: Callable[[], None],
    ) -> None:
        self.socket = socket
        self._max_frames = max_frames
        self._on_message = on_message
        self._on_refused = on_refused
        self._on_writable = on_writable
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.getsockopt(zmq.FD))
        self._full = False
        self._again = False
        self._closed = False
        self._loop.add_reader(self._fd, self._wake)
        # Mail may have arrived before we watched.
        self._read_soon()

    def send(self, frames: Sequence[Frame]) -> Sent:
        """Without waiting."""
        try:
            send_frames(self.socket, frames)
        except zmq.Again:
            self._full = True
            sent = Sent.FULL
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.ENOTSOCK, zmq.ETERM):
                raise
            sent = Sent.GONE
        else:
            sent = Sent.SENT
        # The send may have consumed the wake-up that announced mail.
        if not self._again and self._events() & POLLIN:
            self._read_soon()
        return sent

    def read_all(self) -> None:
        """What has arrived, now. At most what the socket may hold."""
        while not self._closed and self._events() & POLLIN:
            self._wake()

    def leave(self) -> None:
        """Watch no longer. Repeat-safe."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._fd)

    def close(self, linger: int) -> None:
        self.leave()
        self.socket.close(linger)

    def _read_soon(self) -> None:
        if not self._again and not self._closed:
            self._again = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._again = False
        if self._closed:
            return
        # Asking before each read is cheaper than the exception of a failed one.
        events = self._events()
        budget = READ_BUDGET
        while events & POLLIN and budget:
            budget -= 1
            frames = receive_frames(self.socket, self._max_frames)
            if frames:
                self._deliver(frames)
            else:
                self._on_refused("too_many_frames")
            if self._closed:
                return
            events = self._events()
        if self._full and events & POLLOUT:
            self._full = False
            self._on_writable()
            if self._closed:
                return
            events = self._events()
        if events & POLLIN:
            self._read_soon()

    def _deliver(self, frames: list[bytes]) -> None:
        try:
            self._on_message(frames)
        except Exception:
            # A bug costs one message. Go on reading: the socket will not wake us again.
            log.exception("a message could not be taken")
            self._on_refused("internal")

    def _events(self) -> int:
        return self.socket.getsockopt(EVENTS)  # type: ignore[return-value]


class ZmqLine:
    """A DEALER; until one has connected, another after each failed attempt. Implements mesh.transport.DialledLine."""

    def __init__(
        self,
        connect: Callable[[], Dealer],
        owner: LineOwner,
        max_frames: int,
        forget: Callable[[ZmqLine], None],
    ) -> None:
        self._connect = connect
        self._owner = owner
        self._max_frames = max_frames
        self._forget = forget
        self._closed = False
        self._pace = Pace()
        self._retry: asyncio.TimerHandle | None = None
        self._attend(connect())

    def _attend(self, connection: Dealer) -> None:
        owner = self._owner
        self._connection = connection
        self._news = _Watched(connection.news, 2, self._event, lambda reason: None, lambda: None)
        self._mail = _Watched(connection.socket, self._max_frames, owner.received, owner.refused, owner.writable)

    def send(self, frames: Sequence[Frame]) -> Sent:
        if self._closed:
            return Sent.GONE
        # libzmq would queue it without a bound that we know of.
        return self._mail.send(frames) if self._connection.up else Sent.FULL

    def close(self, linger: int = 0) -> None:
        if not self._closed:
            self._closed = True
            self._forget(self)
            if self._retry is not None:
                self._retry.cancel()
            self._leave(linger)

    def _leave(self, linger: int = 0) -> None:
        self._news.leave()
        self._mail.leave()
        self._connection.close(linger)

    def _event(self, frames: list[bytes]) -> None:
        if self._closed or self._connection.over:
            return
        event = event_of(frames)
        was_up = self._connection.up
        self._connection.take(event)
        if self._connection.up:
            self._owner.connected()
        elif was_up:
            # The news may be ahead of the last messages.
            self._mail.read_all()
            if not self._closed:
                self._owner.disconnected("disconnected")
        else:
            if event & HANDSHAKE_FAILED:
                self._owner.refused("handshake")
            self._retry = asyncio.get_running_loop().call_later(self._pace.next(), self._reopen)

    def _reopen(self) -> None:
        """Another attempt."""
        try:
            connection = self._connect()
        except zmq.ZMQError as error:
            log.warning("no socket to connect with: %s", error)
            self._retry = asyncio.get_running_loop().call_later(self._pace.next(), self._reopen)
        else:
            self._leave()
            self._attend(connection)


class _ZmqListener:
    """A ROUTER."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        socket: zmq.Socket[bytes],
        listener: Listener,
        limits: MessageLimits,
    ) -> None:
        self._listener = listener
        news = news_of(context, socket, zmq.EVENT_DISCONNECTED | HANDSHAKE_FAILED)
        self._news = _Watched(news, 2, self._event, lambda reason: None, lambda: None)
        self._watched = _Watched(socket, limits.frames + 1, self._message, listener.refused, listener.writable)

    def reply(self, routing_id: bytes, frames: Sequence[Frame]) -> Sent:
        return self._watched.send([routing_id, *frames])

    def close(self, linger: int) -> None:
        self._watched.socket.disable_monitor()
        self._news.close(0)
        self._watched.close(linger)

    def _message(self, frames: list[bytes]) -> None:
        self._listener.received(frames[0], frames[1:])

    def _event(self, frames: list[bytes]) -> None:
        if event_of(frames) == zmq.EVENT_DISCONNECTED:
            self._listener.disconnected()
        else:
            self._listener.refused("handshake")


class _Gate:
    """Tells libzmq whether a client's key is on the allow-list (ZAP, RFC 27)."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], listener: Listener) -> None:
        self._listener = listener
        self._allowed: dict[bytes, frozenset[bytes]] = {}
        socket = context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind("inproc://zeromq.zap.01")
        self._watched = _Watched(socket, 16, self._question, lambda reason: None, lambda: None)

    def allow(self, domain: str, keys: frozenset[bytes]) -> None:
        self._allowed[domain.encode()] = keys

    def close(self) -> None:
        self._watched.close(0)

    def _question(self, frames: list[bytes]) -> None:
        # [routing id, empty, version, request id, domain, address, identity, mechanism, credentials...]
        if len(frames) < 8:
            return
        sender, empty, version, request, domain, _address, _identity, mechanism, *credentials = frames
        known = (
            version == b"1.0"
            and mechanism == b"CURVE"
            and len(credentials) == 1
            and len(credentials[0]) == 32
            and z85.encode(credentials[0]) in self._allowed.get(domain, frozenset())
        )
        if not known:
            self._listener.refused("key")
        status, text = (b"200", b"OK") if known else (b"400", b"not on the list")
        self._watched.send([sender, empty, b"1.0", request, status, text, b"", b""])
