"""A lean HTTP client for load tests: one protocol object per connection, one timestamp per read.

Every request ends in an Outcome, whatever the server does; the client raises nothing for a server's fault.
A received chunk costs a few microseconds, so one core can receive tens of thousands per second without distorting the
measurement. Knows no workloads and no statistics.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import orjson

from loadtest.completion_stream import CompletionStream, Garbage, error_text
from loadtest.http1 import BadResponse, ResponseReader
from loadtest.outcome import Outcome

MAX_ERROR_BODY = 64 * 1024
MAX_PLAIN_BODY = 64 * 1024 * 1024
# Of a slow reader's socket, in bytes: what the kernel takes while it doesn't read.
SLOW_BUFFER = 4096
_POSTED = b"Content-Type: application/json\r\nContent-Length: %d\r\n"


class ServerUnusable(Exception):
    """A plain request (model list, metrics) got no usable answer."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The parts of a URL: host, port, TLS, and a path prefix."""

    host: str
    port: int
    tls: bool
    prefix: str

    @classmethod
    def of(cls, url: str) -> Origin:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http:// or https:// address")
        tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/")
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls, prefix.removesuffix("/v1"))


class ClientConnection(asyncio.Protocol):
    """One TCP connection with one exchange at a time. Between exchanges it is in the client's pool."""

    def __init__(
        self, now: Callable[[], float], on_idle_lost: Callable[[ClientConnection], None], read_pause: float = 0.0
    ) -> None:
        self._now = now
        self._on_idle_lost = on_idle_lost
        self._read_pause = read_pause
        self.transport: asyncio.Transport | None = None
        self._exchange: HttpExchange | None = None

    def send(self, exchange: HttpExchange, request: bytes) -> None:
        assert self.transport is not None and self._exchange is None
        self._exchange = exchange
        exchange.outcome.local_port = self.transport.get_extra_info("sockname")[1]
        self.transport.write(request)

    def release(self) -> None:
        self._exchange = None

    def abort(self) -> None:
        self._exchange = None
        if self.transport is not None:
            self.transport.abort()

    @property
    def usable(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports don't inherit from asyncio.Transport.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._exchange is None:
            # Unexpected bytes: don't use this connection for another request.
            self.abort()
            return
        self._exchange.received(data, self._now())
        if self._read_pause and self.usable and self.transport is not None:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(self._read_pause, self._read_on)

    def _read_on(self) -> None:
        if self.usable and self.transport is not None:
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._exchange is None:
            self._on_idle_lost(self)
        else:
            self._exchange.lost(exc, self._now())


class HttpExchange:
    """One request on its connection. `finished` is set once, to True if the connection can be reused."""

    def __init__(self, abandon_after: int | None, outcome: Outcome, finished: asyncio.Future[bool]) -> None:
        self.outcome = outcome
        self.finished = finished
        self.answered = False
        self._abandon_after = abandon_after
        self._reader = ResponseReader()
        self._stream = CompletionStream(outcome)
        self._error_body = b""

    def received(self, data: bytes, now: float) -> None:
        if self.finished.done():
            return
        self.answered = True
        reader = self._reader
        try:
            body = reader.feed(data)
            if reader.status == 200:
                if body:
                    self._stream.feed(body, now)
            elif len(self._error_body) < MAX_ERROR_BODY:
                self._error_body += body
        except Garbage as problem:
            self._fail("bad_json", str(problem), now)
            return
        except BadResponse as problem:
            self._fail("bad_http", str(problem), now)
            return
        if reader.complete:
            self._complete(now)
        elif self._abandon_after and self.outcome.chunks >= self._abandon_after:
            self.abandon(now)

    def lost(self, exc: Exception | None, now: float) -> None:
        if self.finished.done():
            return
        if self._reader.feed_eof():
            self._complete(now)
        elif isinstance(exc, ConnectionResetError | BrokenPipeError):
            self._fail("reset", str(exc), now)
        else:
            self._fail("truncated" if self.answered else "closed", "the server closed the connection", now)

    def abandon(self, now: float) -> None:
        """Disconnects on purpose, like a user who closes the browser."""
        if not self.finished.done():
            self.outcome.abandoned = True
            self._end(False, now)

    def expire(self, now: float) -> None:
        self._fail("timeout", f"no end after {now - self.outcome.started:.1f} s", now)

    def _complete(self, now: float) -> None:
        if self._reader.status == 200:
            self._stream.ended()
        else:
            self.outcome.error = f"http_{self._reader.status}"
            self.outcome.detail = _error_of(self._error_body)
            self.outcome.retry_after = self._reader.headers.get(b"retry-after", b"").decode(errors="replace")
        self._end(self._reader.keep_alive, now)

    def _fail(self, kind: str, detail: str, now: float) -> None:
        if self.finished.done():
            return
        if not self.outcome.error:
            # An earlier error event is more specific than the broken connection.
            self.outcome.error, self.outcome.detail = kind, detail
        self._end(False, now)

    def _end(self, reusable: bool, now: float) -> None:
        self.outcome.ended = now
        self.finished.set_result(reusable)


class Client:
    """Keeps idle connections to one server and runs exchanges over them."""

    def __init__(
        self, url: str, *, api_key: str = "", timeout: float = 600.0, connect_timeout: float = 10.0,
        read_pause: float = 0.0,
    ) -> None:  # fmt: skip
        """`read_pause`: seconds to wait after each read of a few KiB, as a slow reader does; 0: none."""
        self.url = url
        self.read_pause = read_pause
        self.origin = Origin.of(url)
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        self._loop = asyncio.get_running_loop()
        self._idle: list[ClientConnection] = []
        self._head = _common_head(self.origin, api_key)
        self._tls = ssl.create_default_context() if self.origin.tls else None

    def now(self) -> float:
        # Not loop.time(): uvloop's has a resolution of 1 ms.
        return time.perf_counter()

    async def stream(
        self,
        path: str,
        body: bytes,
        *,
        scheduled: float,
        abandon_after: int | None = None,
        abandon_within: float = 0.05,
        keep_text: bool = False,
    ) -> Outcome:
        """POSTs, and reads events until the end. `abandon_after` n: disconnect after n chunks with text; 0: disconnect
        `abandon_within` seconds after sending, usually before the first chunk."""
        outcome = Outcome(scheduled, started=self.now(), pieces={} if keep_text else None)
        request = self._request(f"POST {self.origin.prefix}{path}", _POSTED % len(body), body)
        while True:
            reused = bool(self._idle)
            try:
                connection = self._idle.pop() if reused else await self._connect()
            except TimeoutError:
                detail = f"no connection in {self.connect_timeout:g} s"
                return self._never_started(outcome, "connect_timeout", detail)
            except OSError as problem:
                return self._never_started(outcome, _connect_kind(problem), str(problem))
            exchange = HttpExchange(abandon_after, outcome, self._loop.create_future())
            await self._run(connection, exchange, request, abandon_within if abandon_after == 0 else None)
            if not (reused and not exchange.answered and outcome.error in ("closed", "reset")):
                return outcome
            # The server had closed the idle connection before the request: try again.
            outcome = Outcome(scheduled, started=outcome.started, pieces={} if keep_text else None)

    async def get(self, path: str, *, timeout: float = 10.0) -> bytes:
        """The body of a plain GET on a connection of its own; raises ServerUnusable."""
        try:
            async with asyncio.timeout(timeout):
                return await self._get(path)
        except TimeoutError:
            raise ServerUnusable(f"{self.url}: GET {path}: no answer in {timeout:g} s") from None
        except ConnectionRefusedError:
            fix = "start a server (`specmesh up`), or give another's address: specmesh load URL"
            raise ServerUnusable(f"nothing listens at {self.url}\n  fix: {fix}") from None
        except (OSError, BadResponse, asyncio.IncompleteReadError) as problem:
            raise ServerUnusable(f"{self.url}: GET {path}: {problem}") from None

    def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()

    async def _connect(self) -> ClientConnection:
        origin = self.origin
        async with asyncio.timeout(self.connect_timeout):
            where: dict[str, Any] = {"host": origin.host, "port": origin.port}
            if self.read_pause:
                where = {"sock": await self._slow_socket(), "server_hostname": origin.host if self._tls else None}
            _, connection = await self._loop.create_connection(
                lambda: ClientConnection(self.now, self._forget, self.read_pause), ssl=self._tls, **where
            )
        return connection

    async def _slow_socket(self) -> socket.socket:
        made = socket.socket(socket.AF_INET6 if ":" in self.origin.host else socket.AF_INET)
        try:
            made.setblocking(False)
            # Before it connects: the window is agreed on then.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BUFFER)
            await self._loop.sock_connect(made, (self.origin.host, self.origin.port))
        except BaseException:
            made.close()
            raise
        return made

    def _request(self, line: str, headers: bytes, body: bytes) -> bytes:
        return line.encode() + b" HTTP/1.1\r\n" + self._head + headers + b"\r\n" + body

    async def _run(
        self, connection: ClientConnection, exchange: HttpExchange, request: bytes, walk_away: float | None
    ) -> None:
        timers = [self._loop.call_later(self.timeout, lambda: exchange.expire(self.now()))]
        if walk_away is not None:
            timers.append(self._loop.call_later(walk_away, lambda: exchange.abandon(self.now())))
        reusable = False
        try:
            connection.send(exchange, request)
            reusable = await exchange.finished
        finally:
            for timer in timers:
                timer.cancel()
            if reusable and connection.usable:
                connection.release()
                self._idle.append(connection)
            else:
                connection.abort()

    def _never_started(self, outcome: Outcome, kind: str, detail: str) -> Outcome:
        outcome.error, outcome.detail, outcome.ended = kind, detail, self.now()
        return outcome

    def _forget(self, connection: ClientConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    async def _get(self, path: str) -> bytes:
        origin = self.origin
        stream, writer = await asyncio.open_connection(origin.host, origin.port, ssl=self._tls)
        try:
            writer.write(self._request(f"GET {origin.prefix}{path}", b"Connection: close\r\n", b""))
            reader = ResponseReader()
            body = bytearray()
            while not reader.complete:
                data = await stream.read(65536)
                if not data:
                    if not reader.feed_eof():
                        raise BadResponse("the connection closed before the answer was whole")
                    break
                body += reader.feed(data)
                if len(body) > MAX_PLAIN_BODY:
                    raise BadResponse("answer too long")
        finally:
            writer.close()
        if reader.status != 200:
            raise ServerUnusable(f"{self.url}: GET {path}: HTTP {reader.status} {_error_of(bytes(body))}")
        return bytes(body)


def request_body(fields: Mapping[str, object]) -> bytes:
    return orjson.dumps(fields)


def _common_head(origin: Origin, api_key: str) -> bytes:
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    head = f"Host: {host}:{origin.port}\r\nUser-Agent: specmesh-load\r\nAccept: */*\r\n"
    if api_key:
        if not api_key.isprintable():
            raise ValueError("the API key holds characters that no header may")
        head += f"Authorization: Bearer {api_key}\r\n"
    return head.encode()


def _connect_kind(problem: OSError) -> str:
    if isinstance(problem, ConnectionRefusedError):
        return "refused"
    return "reset" if isinstance(problem, ConnectionResetError) else "connect"


def _error_of(body: bytes) -> str:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body[:200].decode(errors="replace")
    return error_text(answer.get("error", answer) if isinstance(answer, dict) else answer)
