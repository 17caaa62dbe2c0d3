"""ZeroMQ under the mesh: one ROUTER bound, one DEALER per endpoint dialled, read straight from the event loop.

Knows sockets, options and CURVE; knows no envelopes. The loop watches each socket's file descriptor, which is
edge-triggered: after every wake-up, and after every send, the socket is asked again whether it has mail.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from mesh.address import Endpoint, require_keys
from mesh.transport import CurveServer, Door, Frame, Limits, LineOwner, Security, Sent

log = logging.getLogger("mesh")

# Messages read in one go before the loop gets its turn.
READ_BUDGET = 16
# Frames above this are handed over without a copy.
COPY_BELOW = 65536
# Off, and not by oversight: libzmq (4.3.5 and later) aborts the process when a heartbeat falls due on a
# connection whose peer has left while our queue was full. A peer with open work is watched by Hello and
# Welcome instead (mesh/session.py, `silence`), an idle one over tcp by the kernel's keepalive.
HEARTBEAT_MS = 0
KEEPALIVE_IDLE_S = 10
KEEPALIVE_INTERVAL_S = 3
KEEPALIVE_PROBES = 3
HANDSHAKE_MS = 3000
RECONNECT_MS = 10
# As plain integers: combining pyzmq's enums costs more than a send.
NOBLOCK = int(zmq.NOBLOCK)
NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS = int(zmq.EVENTS)
_RCVMORE = int(zmq.RCVMORE)
_POLLIN = int(zmq.POLLIN)
_POLLOUT = int(zmq.POLLOUT)
RECONNECT_MAX_MS = 500
_HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class ZmqTransport:
    """Implements mesh.transport.Transport. One event loop, one context, one node."""

    def __init__(self, *, security: Security | None = None, limits: Limits | None = None) -> None:
        self._security = security
        self._limits = limits or Limits()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._door: _ZmqDoor | None = None
        self._lines: set[ZmqLine] = set()
        self._gate: _Gate | None = None

    async def bind(self, endpoint: str, door: Door) -> str:
        parsed = Endpoint.parse(endpoint)
        require_keys(parsed, self._security is not None, "bind")
        socket = self._socket(zmq.ROUTER)
        try:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            # A dialler that reconnects before we noticed its loss takes its place over.
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
            if parsed.needs_keys:
                assert self._security is not None
                self._lock(socket, self._security.server(), door)
            socket.bind(endpoint.replace(":0", ":*") if endpoint.endswith(":0") else endpoint)
        except BaseException:
            socket.close(0)
            raise
        bound = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        resolved = bound.rstrip(b"\0").decode()
        if parsed.scheme == "ipc" and not parsed.rest.startswith(("@", "*")):
            os.chmod(parsed.rest, 0o600)
        self._door = _ZmqDoor(socket, door, self._limits)
        return resolved

    def dial(self, endpoint: str, routing_id: bytes, owner: LineOwner) -> ZmqLine:
        parsed = Endpoint.parse(endpoint)
        require_keys(parsed, self._security is not None, "dial")
        socket = self._socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.ROUTING_ID, routing_id)
            # Nothing is queued for a connection that does not stand: our outbox is bounded, theirs is hidden.
            socket.setsockopt(zmq.IMMEDIATE, 1)
            socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
            if parsed.needs_keys:
                assert self._security is not None
                unlock(socket, self._security, endpoint)
            line = ZmqLine(socket, owner, self._limits, self._lines.discard)
            socket.connect(endpoint)
        except BaseException:
            socket.close(0)
            raise
        self._lines.add(line)
        return line

    def reply(self, routing_id: bytes, frames: Sequence[Frame]) -> Sent:
        return Sent.GONE if self._door is None else self._door.reply(routing_id, frames)

    async def close(self, linger: float) -> None:
        milliseconds = int(linger * 1000)
        for line in list(self._lines):
            line.close(milliseconds)
        if self._door is not None:
            self._door.close(milliseconds)
            self._door = None
        if self._gate is not None:
            self._gate.close()
            self._gate = None
        # Waits for the lingering bytes, so not on the loop.
        await asyncio.get_running_loop().run_in_executor(None, self._context.term)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        set_limits(socket, self._limits)
        return socket

    def _lock(self, socket: zmq.Socket[bytes], keys: CurveServer, door: Door) -> None:
        """Only clients on the list get through the handshake."""
        if self._gate is None:
            self._gate = _Gate(self._context, door)
        self._gate.allow(keys.domain, keys.allowed)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public_key)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret_key)
        socket.setsockopt(zmq.ZAP_DOMAIN, keys.domain.encode())


def set_limits(socket: zmq.Socket[bytes], limits: Limits) -> None:
    """The options every socket of the mesh has."""
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, limits.frame_bytes)
    socket.setsockopt(zmq.SNDHWM, limits.queued_messages)
    socket.setsockopt(zmq.RCVHWM, limits.queued_messages)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_INTERVAL_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_PROBES)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)


def unlock(socket: zmq.Socket[bytes], security: Security, endpoint: str) -> None:
    """Give a dialling socket its keys."""
    keys = security.client(endpoint)
    socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server_key)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public_key)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret_key)


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
        # The edge may have passed before we watched.
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
        # Sending may have taken the wake-up that announced mail.
        if not self._again and self._events() & _POLLIN:
            self._read_soon()
        return sent

    def close(self, linger: int) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._fd)
            self.socket.close(linger)

    def _read_soon(self) -> None:
        if not self._again and not self._closed:
            self._again = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._again = False
        if self._closed:
            return
        # Asking before each read is cheaper than the exception of a read in vain.
        events = self._events()
        budget = READ_BUDGET
        while events & _POLLIN and budget:
            budget -= 1
            frames = receive_frames(self.socket, self._max_frames)
            if frames:
                self._deliver(frames)
            else:
                self._on_refused("too_many_frames")
            if self._closed:
                return
            events = self._events()
        if self._full and events & _POLLOUT:
            self._full = False
            self._on_writable()
            if self._closed:
                return
            events = self._events()
        if events & _POLLIN:
            self._read_soon()

    def _deliver(self, frames: list[bytes]) -> None:
        try:
            self._on_message(frames)
        except Exception:
            # A fault of ours, and one message lost. The socket must be read on: it will not wake us again.
            log.exception("a message could not be taken")
            self._on_refused("internal")

    def _events(self) -> int:
        return self.socket.getsockopt(_EVENTS)  # type: ignore[return-value]


def send_frames(socket: zmq.Socket[bytes], frames: Sequence[Frame]) -> None:
    """Without waiting. Raises zmq.Again before the first frame or not at all."""
    for frame in frames[:-1]:
        socket.send(frame, NOBLOCK_MORE, copy=len(frame) < COPY_BELOW)
    socket.send(frames[-1], NOBLOCK, copy=len(frames[-1]) < COPY_BELOW)


def receive_frames(socket: zmq.Socket[bytes], most: int, flags: int = NOBLOCK) -> list[bytes]:
    """A message; empty when it has too many frames. Raises zmq.Again when none is here."""
    frames = [socket.recv(flags)]
    while socket.getsockopt(_RCVMORE):
        frame = socket.recv(NOBLOCK)
        if len(frames) <= most:
            frames.append(frame)
    return frames if len(frames) <= most else []


class _Monitor:
    """A socket's own news: connections made and lost."""

    def __init__(self, socket: zmq.Socket[bytes], events: int, on_event: Callable[[int], None]) -> None:
        self._watched_socket = socket
        self._on_event = on_event
        monitor: Any = socket.get_monitor_socket(events)
        self._watched = _Watched(monitor, 2, self._event, lambda reason: None, lambda: None)

    def close(self) -> None:
        self._watched_socket.disable_monitor()
        self._watched.close(0)

    def _event(self, frames: list[bytes]) -> None:
        if len(frames) == 2:
            self._on_event(parse_monitor_message(frames)["event"])


class ZmqLine:
    """A DEALER. Implements mesh.transport.Line."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        owner: LineOwner,
        limits: Limits,
        forget: Callable[[ZmqLine], None],
    ) -> None:
        self._owner = owner
        self._forget = forget
        self._closed = False
        self._monitor = _Monitor(
            socket, zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | _HANDSHAKE_FAILED, self._event
        )
        self._watched = _Watched(socket, limits.frames, owner.received, owner.refused, owner.writable)

    def send(self, frames: Sequence[Frame]) -> Sent:
        return Sent.GONE if self._closed else self._watched.send(frames)

    def close(self, linger: int = 0) -> None:
        if not self._closed:
            self._closed = True
            self._forget(self)
            self._monitor.close()
            self._watched.close(linger)

    def _event(self, event: int) -> None:
        if self._closed:
            return
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._owner.connected()
        elif event == zmq.EVENT_DISCONNECTED:
            self._owner.disconnected("disconnected")
        else:
            self._owner.refused("handshake")
            self._owner.disconnected("handshake failed")


class _ZmqDoor:
    """A ROUTER."""

    def __init__(self, socket: zmq.Socket[bytes], door: Door, limits: Limits) -> None:
        self._door = door
        self._monitor = _Monitor(socket, zmq.EVENT_DISCONNECTED | _HANDSHAKE_FAILED, self._event)
        self._watched = _Watched(socket, limits.frames + 1, self._message, door.refused, door.writable)
        self._endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)

    def reply(self, routing_id: bytes, frames: Sequence[Frame]) -> Sent:
        return self._watched.send([routing_id, *frames])

    def close(self, linger: int) -> None:
        self._monitor.close()
        self._watched.close(linger)

    def _message(self, frames: list[bytes]) -> None:
        self._door.received(frames[0], frames[1:])

    def _event(self, event: int) -> None:
        if event == zmq.EVENT_DISCONNECTED:
            self._door.disconnected()
        else:
            self._door.refused("handshake")


class _Gate:
    """Answers ZeroMQ's question whether a client's key is on the list (ZAP, RFC 27)."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], door: Door) -> None:
        self._door = door
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
            self._door.refused("key")
        status, text = (b"200", b"OK") if known else (b"400", b"not on the list")
        self._watched.send([sender, empty, b"1.0", request, status, text, b"", b""])
