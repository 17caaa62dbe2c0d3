"""ZeroMQ sockets with the mesh's options, keys and frames, and a DEALER for one connection.

Knows no event loop and no envelopes: zmq.py reads these sockets.

Why a DEALER is made for every connection, instead of left to reconnect by itself: with IMMEDIATE, libzmq (4.3.5) drops
the queue of a lost connection at once, also in the middle of a message, and aborts the process (`Assertion failed:
!_more`). Without IMMEDIATE it would send what is queued to the next peer. And after bytes that are no ZMTP it
never tries again (docs/internals/decisions/0014).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from mesh.security import CurveClient
from mesh.transport import Frame, MessageLimits

# Frames above this size are handed over without a copy. For that pyzmq starts a thread and a context of its own; up to
# the 256 KB of a bundle a copy is as fast.
COPY_BELOW = 1 << 20
# Off: libzmq (4.3.5 and later) aborts the process when a heartbeat is due on a connection whose peer has left while our
# queue was full (docs/internals/decisions/0014). A peer with open calls is watched by Hello and Welcome instead
# (mesh/timing.py, `silence`), an idle one over tcp by the kernel's keepalive.
HEARTBEAT_MS = 0
KEEPALIVE_IDLE_S = 10
KEEPALIVE_INTERVAL_S = 3
KEEPALIVE_PROBES = 3
HANDSHAKE_MS = 3000
FIRST_RETRY, LONGEST_RETRY = 0.01, 0.5  # s
# A socket connects once.
NEVER_MS = 2**31 - 1
# As plain integers: combining pyzmq's enums costs more than a send.
NOBLOCK = int(zmq.NOBLOCK)
NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
EVENTS = int(zmq.EVENTS)
POLLIN = int(zmq.POLLIN)
POLLOUT = int(zmq.POLLOUT)
_RCVMORE = int(zmq.RCVMORE)
HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_CONNECTION_NEWS = zmq.EVENT_HANDSHAKE_SUCCEEDED | HANDSHAKE_FAILED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
_monitors = itertools.count(1)


def set_options(socket: zmq.Socket[bytes], endpoint: str, limits: MessageLimits) -> None:
    """Those that every socket of the mesh has."""
    # Only for such an address: with it, a name that has both kinds of address would be dialled at its IPv6 one alone.
    socket.setsockopt(zmq.IPV6, endpoint.startswith("tcp://["))
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


def use_keys(socket: zmq.Socket[bytes], keys: CurveClient) -> None:
    socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server_key)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public_key)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret_key)


def send_frames(socket: zmq.Socket[bytes], frames: Sequence[Frame]) -> None:
    """Without waiting. Raises zmq.Again before the first frame or not at all."""
    for frame in frames[:-1]:
        socket.send(frame, NOBLOCK_MORE, copy=len(frame) < COPY_BELOW)
    socket.send(frames[-1], NOBLOCK, copy=len(frames[-1]) < COPY_BELOW)


def receive_frames(socket: zmq.Socket[bytes], most: int) -> list[bytes]:
    """A message; empty when it has too many frames. Raises zmq.Again when none is here."""
    frames = [socket.recv(NOBLOCK)]
    while socket.getsockopt(_RCVMORE):
        frame = socket.recv(NOBLOCK)
        if len(frames) <= most:
            frames.append(frame)
    return frames if len(frames) <= most else []


def news_of(context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
    """A socket that reports what happens to another's connections. To be made before that one binds or connects."""
    # pyzmq's own address comes from the descriptor, which may be that of a socket closed a moment ago.
    address = f"inproc://news-{next(_monitors)}"
    socket.monitor(address, events)
    news = context.socket(zmq.PAIR)
    news.connect(address)
    return news


def event_of(frames: list[bytes]) -> int:
    """The event in a message from such a socket."""
    found: Any = parse_monitor_message(frames)["event"] if len(frames) == 2 else 0
    return int(found)


class Dealer:
    """A DEALER that connects once. `up`: one can send. `over`: it will never be up again.

    What arrived before the end can be read until it is closed. Raises zmq.ZMQError where the system has no socket left.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        identity: bytes,
        limits: MessageLimits,
        keys: CurveClient | None,
    ) -> None:
        self.up = self.over = False
        self.socket = context.socket(zmq.DEALER)
        try:
            set_options(self.socket, endpoint, limits)
            self.socket.setsockopt(zmq.ROUTING_ID, identity)
            self.socket.setsockopt(zmq.RECONNECT_IVL, NEVER_MS)
            if keys is not None:
                use_keys(self.socket, keys)
            self.news = news_of(context, self.socket, _CONNECTION_NEWS)
            self.socket.connect(endpoint)
        except BaseException:
            self.socket.close(0)
            raise

    def take(self, event: int) -> None:
        """A piece of news."""
        self.up = event == zmq.EVENT_HANDSHAKE_SUCCEEDED and not self.over
        self.over |= not self.up

    def close(self, linger: int = 0) -> None:
        self.socket.disable_monitor()
        self.news.close(0)
        self.socket.close(linger)


class Pace:
    """The delay between two attempts to connect: it doubles with each."""

    def __init__(self) -> None:
        self._delay = FIRST_RETRY

    def next(self) -> float:
        delay, self._delay = self._delay, min(2 * self._delay, LONGEST_RETRY)
        return delay
