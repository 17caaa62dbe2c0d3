"""When the bytes of streamed answers were there, by the kernel's clock and not by the reader's.

A socket with SO_TIMESTAMPNS tells with each read when the last of its bytes came in; how late the reader got a core
is not in that. Plain sockets and a selector; knows no event loop.
"""

from __future__ import annotations

import json
import selectors
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

from loadtest.http1 import EventReader, ResponseReader

SO_TIMESTAMPNS = 35  # of Linux; the socket module has no name for it
_TIMESPEC = struct.Struct("@ll")
READ = 1 << 16


class Stream:
    """One request after another on one connection. `gaps` are seconds between its chunks with text."""

    def __init__(self, port: int, body: Mapping[str, Any]) -> None:
        payload = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload
        self.gaps: list[float] = []
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._ask()

    def read(self) -> bool:
        """What is there now; False when the server hung up or refused."""
        data, notes, _, _ = self.socket.recvmsg(READ, 256)
        if not data:
            return False
        came = arrival(notes)
        for event in self._events.feed(self._response.feed(data)):
            if b'"text":"' not in event or b'"text":""' in event:
                continue
            if self.last is not None and came is not None:
                self.gaps.append(came - self.last)
            self.last = came
        if self._response.complete:
            if self._response.status != 200 or not self._response.keep_alive:
                return False
            self._ask()
        return True

    def _ask(self) -> None:
        self._response, self._events = ResponseReader(), EventReader()
        self.last: float | None = None
        self.socket.sendall(self._request)


def arrival(notes: list[tuple[int, int, bytes]]) -> float | None:
    """Seconds since 1970 at which the kernel had the bytes. It begins to note them a moment after the first socket
    asked for it: None before."""
    for level, kind, data in notes:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            return float(seconds) + float(nanoseconds) * 1e-9
    return None


def read_streams(port: int, body: Mapping[str, Any], count: int, stop: Callable[[], bool]) -> list[float]:
    """Reads so many streams until `stop` says so; the gaps of all."""
    streams = [Stream(port, body) for _ in range(count)]
    with selectors.DefaultSelector() as waiting:
        for stream in streams:
            waiting.register(stream.socket, selectors.EVENT_READ, stream)
        while waiting.get_map() and not stop():
            for key, _ in waiting.select(0.1):
                if not key.data.read():
                    waiting.unregister(key.fileobj)
    for stream in streams:
        stream.socket.close()
    return [gap for stream in streams for gap in stream.gaps]
