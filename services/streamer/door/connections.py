"""The timers and the cap of HTTP connections: a client that sends or reads too slowly loses its connection.

    CONNECTED ─bytes─▶ READING ─headers whole─▶ BODY ─body whole─▶ ANSWERING ─▶ IDLE ─bytes─▶ READING
        │ body_timeout     │ body_timeout, for both ──┘                │           │ KEEPALIVE
        ▼                  ▼                                           ▼           ▼
      closed          408, closed                      stalled for write_timeout: closed

Knows no routes and no bodies.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from enum import Enum
from typing import Any, cast

import orjson
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from services.streamer.openai.errors import ApiError

KEEPALIVE = 75.0  # seconds an idle connection is kept
MAX_HEADERS = 100
MAX_HEADER_BYTES = 8190  # of one line; all of them together: MAX_HEADER_TOTAL
MAX_HEADER_TOTAL = 32768
WRITE_BUFFER = 65536  # bytes written and not yet taken by the kernel before a writer waits
# What the kernel takes of a connection, in bytes: 2 to 4 MB otherwise. It counts its own book-keeping and doubles
# the first. The second bounds what has not been sent, which is all of it once a client has stopped reading.
KERNEL_BUFFER = 65536
KERNEL_UNSENT = 16384
SWEEP_EVERY = 0.25  # seconds between two checks of the timers
MAX_REFUSED = 32  # connections that are told at once that there are too many; others are closed without a word
LINGER = 0.5  # seconds a refused body may go on arriving before the connection is closed


class Connections:
    """All open connections. `sweep` is called with the time and closes those whose timer has expired."""

    def __init__(self, *, limit: int, body_timeout: float, write_timeout: float) -> None:
        self._limit = limit
        self.body_timeout = body_timeout
        self.write_timeout = write_timeout
        self.open: set[Connection] = set()
        self.handshakes: set[asyncio.Task[None]] = set()  # with TLS: of connections that are not open yet
        self.refused = 0
        self.cut = 0
        self._sweeper: asyncio.Task[None] | None = None

    def server(self, handler: Callable[[Any], Any], *, max_body_bytes: int) -> web.Server:
        return _Server(self, handler, max_body_bytes)

    def start(self) -> None:
        self._sweeper = asyncio.create_task(self._sweep_for_ever(), name="streamer-connections")

    async def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        for each in self.handshakes:
            each.cancel()

    def has_room(self) -> bool:
        """Whether one more fits, if need be in the place of the one that has been idle longest."""
        if len(self.open) < self._limit:
            return True
        idle = [each for each in self.open if each.doing is Doing.IDLE]
        if not idle:
            return False
        oldest = min(idle, key=lambda each: each.deadline)
        self.open.discard(oldest)
        oldest.cut()
        return True

    def has_room_to_refuse(self) -> bool:
        """Every refused connection takes a descriptor until its client has read the answer."""
        return len(self.open) <= self._limit + MAX_REFUSED

    def has_room_for_handshake(self) -> bool:
        return len(self.open) + len(self.handshakes) < self._limit + MAX_REFUSED

    def sweep(self, now: float) -> None:
        for each in list(self.open):
            if each.deadline < now or each.is_stalled(now):
                self.cut += 1
                each.time_out()

    async def _sweep_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_EVERY)
            self.sweep(loop.time())


NEVER = float("inf")


class Doing(Enum):
    """What a connection's client is doing."""

    CONNECTED = "connected"
    READING = "reading"
    BODY = "body"
    ANSWERING = "answering"
    IDLE = "idle"
    LINGERING = "lingering"  # answered before its body was complete: the rest is read and discarded
    CLOSING = "closing"


class Connection(RequestHandler):
    """One connection: aiohttp's protocol with a deadline for what the client is doing."""

    __slots__ = (
        "_connections", "_early", "_header_bytes", "_unread", "body_bytes", "deadline", "doing", "stalled_until",
    )  # fmt: skip

    def __init__(self, connections: Connections, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._connections = connections
        self._early = False  # bytes of a next request came while this one is being answered
        self._header_bytes = 0
        self.body_bytes = 0  # reserved for the body of its request (bodies.py)
        self.doing = Doing.CONNECTED
        self.deadline = NEVER
        self.stalled_until = NEVER
        self._unread = 0  # bytes that wait for the client, when stalled_until was set

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        room = self._connections.has_room()
        self._connections.open.add(self)
        if not room:
            self._connections.refused += 1
            if not self._connections.has_room_to_refuse():
                self.cut()
                return
            self._any_to_closing(ApiError(503, "Too many connections", code="too_many_connections"))
            return
        # uvloop's transports are not subclasses of asyncio's.
        cast(asyncio.Transport, transport).set_write_buffer_limits(high=WRITE_BUFFER)
        if (opened := transport.get_extra_info("socket")) is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)
            if opened.family != socket.AF_UNIX:
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, KERNEL_UNSENT)
        self._restart_deadline()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.open.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.doing is Doing.CLOSING:
            return
        parsed = self._request_count
        super().data_received(data)
        if self.doing is Doing.ANSWERING:
            self._early = self._early or bool(data)
        elif self._request_count > parsed:
            self._reading_to_body()
        elif data and self.doing not in (Doing.BODY, Doing.LINGERING):
            self._more_headers(len(data))

    def body_read(self) -> None:
        """The handler has the whole request, or needs no more of it."""
        self.doing = Doing.ANSWERING
        self.deadline = NEVER

    def answered(self, *, body_left: bool) -> None:
        """The handler has its answer. What it writes from here on is watched by `stalled_until`."""
        self._header_bytes = 0
        if body_left:
            self.doing = Doing.LINGERING
            self.deadline = self._loop.time() + 2 * LINGER
            return
        if self._early:
            self.doing = Doing.BODY if self._messages else Doing.READING
            self._restart_deadline()
        else:
            self.doing = Doing.IDLE
            self.deadline = self._loop.time() + KEEPALIVE
        self._early = False

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stalled_until = self._loop.time() + self._connections.write_timeout
        self._unread = self._buffered()

    def resume_writing(self) -> None:
        self.stalled_until = NEVER
        super().resume_writing()

    def is_stalled(self, now: float) -> bool:
        """Whether the client has taken less than WRITE_BUFFER bytes in write_timeout. One that reads a long answer
        over a slow line takes more."""
        if self.stalled_until >= now:
            return False
        left = self._buffered()
        if left > self._unread - WRITE_BUFFER:
            return True
        self._unread = left
        self.stalled_until = now + self._connections.write_timeout
        return False

    def _buffered(self) -> int:
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    async def writable(self) -> None:
        """Waits while the client does not read; raises when it is gone."""
        await self._drain_helper()

    def time_out(self) -> None:
        """The time for what the client is doing has passed. While it sends a body the handler answers."""
        if self.doing is Doing.READING and self.stalled_until == NEVER:
            self._any_to_closing(ApiError(408, "The headers did not arrive in time", code="request_timeout"))
        elif self.doing is not Doing.BODY or self.stalled_until != NEVER:
            self.cut()

    def cut(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Errors that aiohttp finds in the HTTP itself, as errors of this API."""
        if request.writer.output_size > 0:
            raise ConnectionError("the response was under way")
        text = "The request is not valid HTTP" if status < 500 else "The server failed"
        error = ApiError(status, text, code="invalid_http" if status < 500 else "internal_error")
        response = web.Response(status=status, body=orjson.dumps(error.body()), content_type="application/json")
        response.force_close()
        return response

    def _restart_deadline(self) -> None:
        self.deadline = self._loop.time() + self._connections.body_timeout

    def _more_headers(self, size: int) -> None:
        if self.doing is Doing.IDLE:
            self._restart_deadline()
        self.doing = Doing.READING
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_TOTAL:
            self._any_to_closing(_headers_too_large())

    def _reading_to_body(self) -> None:
        if self.doing is Doing.IDLE:
            self._restart_deadline()
        self.doing = Doing.BODY

    def _any_to_closing(self, error: ApiError) -> None:
        self.doing = Doing.CLOSING
        self.deadline = self._loop.time() + 2 * LINGER
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(_canned(error))
            self.close()
            # Closing while the client still sends would reset the connection, and the answer would be lost:
            # what comes is thrown away until the client closes or the time is over.
            # TLS has no half of a connection to close: it is cut when the time is over.
            if self.transport.can_write_eof():
                self.transport.write_eof()


def check_header_size(http: web.BaseRequest) -> None:
    """Headers that came at once with the end of them."""
    if sum(len(name) + len(value) + 4 for name, value in http.raw_headers) > MAX_HEADER_TOTAL:
        raise _headers_too_large()


def _headers_too_large() -> ApiError:
    return ApiError(431, "The headers are too large", code="headers_too_large")


# Headers added to the answer of a request, also to an error's.
ANSWER_HEADERS = web.RequestKey("ANSWER_HEADERS", dict[str, str])


class HttpRequest(web.BaseRequest):
    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        """Called by aiohttp before the headers of any kind of answer are written."""
        response.headers.update(self.get(ANSWER_HEADERS, {}))


class _Server(web.Server):
    def __init__(self, connections: Connections, handler: Callable[[Any], Any], max_body_bytes: int) -> None:
        super().__init__(handler, request_factory=self._request, handler_cancellation=True)
        self._of = connections
        self._max_body_bytes = max_body_bytes

    def __call__(self) -> RequestHandler:
        return Connection(
            self._of,
            self,
            loop=self._loop,
            access_log=None,
            keepalive_timeout=KEEPALIVE,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            max_headers=MAX_HEADERS,
            lingering_time=LINGER,
            auto_decompress=False,
        )

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        return HttpRequest(
            message, payload, protocol, writer, task, self._loop, client_max_size=self._max_body_bytes
        )


def _canned(error: ApiError) -> bytes:
    body = orjson.dumps(error.body())
    head = f"HTTP/1.1 {error.status} Refused\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
