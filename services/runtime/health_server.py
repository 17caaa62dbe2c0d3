"""The health server of a process: /metrics, /health/live and /health/ready over a very small HTTP/1.1 server.

Only GET and HEAD without a body, one request a connection, everything bounded in bytes, time and number. There are
no keys, so the Host header is checked (hosts.py). It knows a registry and a function that says what is missing; it
knows nothing of the role behind them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from services.api.hosts import AllowedHosts, refusal

MAX_HEAD_BYTES = 8192
HEAD_TIMEOUT = 5.0  # s, for the whole of the request
WRITE_TIMEOUT = 10.0  # s
MAX_CONNECTIONS = 64

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class PortTaken(OSError):
    """The port can't be bound. The message names the setting for another one."""


class HealthServer:
    """`reasons()` lists why the process isn't ready; empty: it is ready. A process that answers is live."""

    def __init__(
        self,
        registry: CollectorRegistry,
        reasons: Callable[[], Sequence[str]],
        *,
        about: Mapping[str, str] | None = None,
        vllm_metric_names: bool = False,
        hosts: AllowedHosts | None = None,
    ) -> None:
        self._registry = registry
        self._reasons = reasons
        self._about = dict(about or {})
        self._vllm_metric_names = vllm_metric_names
        self._hosts = hosts or AllowedHosts()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Port 0 takes a free one; `port` says which. Raises PortTaken."""
        try:
            self._server = await asyncio.start_server(self._accept, host, port, limit=MAX_HEAD_BYTES)
        except OSError as error:
            raise PortTaken(
                error.errno,
                f"{host}:{port} cannot be listened on ({error.strerror or error}):"
                " choose another with --metrics-port or SPECMESH_METRICS_PORT",
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=1.0)

    # A connection ---------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, TimeoutError, asyncio.CancelledError):
            # The client disconnected or was too slow, or we stop.
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status, kind, body, head_only = await self._read_and_answer(reader)
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + (b"" if head_only else body))
        async with asyncio.timeout(WRITE_TIMEOUT):
            await writer.drain()
        writer.write_eof()
        # What the client still sends is read away for a moment: closing over it would reset the answer.
        async with asyncio.timeout(1.0):
            for _ in range(64):
                if not await reader.read(MAX_HEAD_BYTES):
                    break

    async def _read_and_answer(self, reader: asyncio.StreamReader) -> tuple[int, str, bytes, bool]:
        try:
            async with asyncio.timeout(HEAD_TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return (*_text(431, "the request is too large"), False)
        except asyncio.IncompleteReadError:
            return (*_text(400, "this is no request"), False)
        except TimeoutError:
            return (*_text(408, "the request took too long"), False)
        first, *headers = head.split(b"\r\n")
        words = first.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return (*_text(400, "this is no request"), False)
        if words[0] not in (b"GET", b"HEAD"):
            return (*_text(405, "only GET and HEAD are served"), False)
        host = _host(headers)
        if not self._hosts.serves(host):
            return (*_text(421, refusal(host)), False)
        return (*self._answer(words[1].split(b"?", 1)[0]), words[0] == b"HEAD")

    # What is served -------------------------------------------------------------------------------------------

    def _answer(self, path: bytes) -> tuple[int, str, bytes]:
        try:
            match path:
                case b"/metrics":
                    return 200, CONTENT_TYPE_LATEST, self.metrics()
                case b"/health/live":
                    return _json(200, {"live": True, **self._about})
                case b"/health/ready":
                    reasons = list(self._reasons())
                    status = 503 if reasons else 200
                    return _json(status, {"ready": not reasons, **self._about, "reasons": reasons})
        except Exception as error:  # a faulty collector must not stop the server
            return _text(500, type(error).__name__)
        return _text(404, "served here: /metrics, /health/live, /health/ready")

    def metrics(self) -> bytes:
        """The registry in Prometheus' text format; on request every `specmesh:` name as `vllm:`, too."""
        text = self.own_metrics()
        return text + _as_vllm(text) if self._vllm_metric_names else text

    def own_metrics(self) -> bytes:
        """The registry under our own names alone."""
        return generate_latest(self._registry)


def _as_vllm(text: bytes) -> bytes:
    lines = (line for line in text.split(b"\n") if b"specmesh:" in line)
    return b"".join(_rename(line) + b"\n" for line in lines)


def _rename(line: bytes) -> bytes:
    # The name only: a label's value may well say specmesh: itself.
    if line.startswith(b"#"):
        return line.replace(b" specmesh:", b" vllm:", 1)
    return b"vllm:" + line.removeprefix(b"specmesh:") if line.startswith(b"specmesh:") else b""


def _host(headers: list[bytes]) -> str:
    """Of several the first, as everywhere; empty: none was sent."""
    for line in headers:
        name, _, value = line.partition(b":")
        if name.lower() == b"host":
            return value.strip().decode("latin-1")
    return ""


def _json(status: int, value: Mapping[str, object]) -> tuple[int, str, bytes]:
    return status, "application/json", json.dumps(value).encode()


def _text(status: int, text: str) -> tuple[int, str, bytes]:
    return status, "text/plain; charset=utf-8", text.encode() + b"\n"
