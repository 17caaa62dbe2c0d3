"""Reads HTTP/1.1 responses and server-sent events out of bytes. Knows no sockets, no JSON and no clock.

The server is not trusted: every buffer has a limit, and a violation of the grammar raises `BadResponse`.
"""

from __future__ import annotations

MAX_HEAD = 64 * 1024
MAX_EVENT = 4 * 1024 * 1024


class BadResponse(Exception):
    """The peer does not speak HTTP/1.1 or SSE, or exceeds a limit."""


class ResponseReader:
    """One response. `feed` returns the body bytes that became readable; `complete` says it is over.

    head -> body -> done, where the body ends by chunks, by a length, or with the connection.
    """

    __slots__ = ("_buffer", "_left", "_mode", "complete", "headers", "keep_alive", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.keep_alive = True
        self.complete = False
        self._buffer = b""
        self._mode = "head"
        # Remaining bytes of a sized body, or of a chunk and the CRLF after it.
        self._left = 0

    def feed(self, data: bytes) -> bytes:
        if self._mode == "head":
            data = self._read_head(data)
            if self._mode == "head":
                return b""
        if self._mode == "chunks":
            return self._read_chunks(data)
        if self._mode == "trailers":
            self._read_trailers(data)
            return b""
        if self._mode == "length":
            return self._read_sized(data)
        if self._mode == "until close":
            return data
        if data:
            raise BadResponse("bytes after the end of the response")
        return b""

    def feed_eof(self) -> bool:
        """The connection ended. Returns True if the response is complete by that."""
        if self._mode == "until close":
            self._finish()
        return self.complete

    def _read_head(self, data: bytes) -> bytes:
        buffer = self._buffer + data
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(buffer) > MAX_HEAD:
                raise BadResponse("response head too long")
            self._buffer = buffer
            return b""
        self._buffer = b""
        lines = buffer[:end].split(b"\r\n")
        self.status = _status(lines[0])
        rest = buffer[end + 4 :]
        if 100 <= self.status < 200:
            # An interim response: the final one follows.
            return self._read_head(rest)
        for line in lines[1:]:
            name, colon, value = line.partition(b":")
            if not colon:
                raise BadResponse("header without a colon")
            self.headers[name.lower()] = value.strip()
        self._choose_body(lines[0])
        return rest

    def _choose_body(self, status_line: bytes) -> None:
        connection = self.headers.get(b"connection", b"").lower()
        old = status_line.startswith(b"HTTP/1.0")
        self.keep_alive = connection == b"keep-alive" if old else connection != b"close"
        if self.headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            self._mode = "chunks"
        elif self.status in (204, 304):
            self._finish()
        elif (length := self.headers.get(b"content-length")) is not None:
            if not length.isdigit():
                raise BadResponse("bad content-length")
            self._left = int(length)
            self._mode = "length"
            if self._left == 0:
                self._finish()
        else:
            self.keep_alive = False
            self._mode = "until close"

    def _read_sized(self, data: bytes) -> bytes:
        if len(data) > self._left:
            raise BadResponse("body longer than its content-length")
        self._left -= len(data)
        if self._left == 0:
            self._finish()
        return data

    def _read_chunks(self, data: bytes) -> bytes:
        #  1a3\r\n <0x1a3 bytes> \r\n 0\r\n\r\n
        #  ^at             ^at + _left - 2
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        body: list[bytes] = []
        at, size = 0, len(data)
        while at < size:
            if self._left == 0:
                line = data.find(b"\r\n", at)
                if line < 0:
                    if size - at > 1024:
                        raise BadResponse("chunk size line too long")
                    self._buffer = data[at:]
                    break
                length = _chunk_size(data[at:line])
                at = line + 2
                if length == 0:
                    self._mode = "trailers"
                    self._read_trailers(data[at:])
                    break
                self._left = length + 2
                continue
            have = size - at
            if have >= self._left:
                end = at + self._left - 2
                if data[end : end + 2] != b"\r\n":
                    raise BadResponse("chunk does not end where it said")
                body.append(data[at:end])
                at = end + 2
                self._left = 0
            else:
                # Part of a chunk; an incomplete CRLF at its end stays in the buffer.
                take = min(have, self._left - 2)
                if take <= 0:
                    self._buffer = data[at:]
                    break
                body.append(data[at : at + take])
                self._left -= take
                at += take
        return body[0] if len(body) == 1 else b"".join(body)

    def _read_trailers(self, data: bytes) -> None:
        buffer = self._buffer + data
        if buffer.startswith(b"\r\n"):
            end = 2
        elif (found := buffer.find(b"\r\n\r\n")) >= 0:
            end = found + 4
        elif len(buffer) > MAX_HEAD:
            raise BadResponse("trailers too long")
        else:
            self._buffer = buffer
            return
        if len(buffer) > end:
            raise BadResponse("bytes after the end of the response")
        self._buffer = b""
        self._finish()

    def _finish(self) -> None:
        self._mode = "done"
        self.complete = True


class EventReader:
    """Splits an SSE body into the `data` of its events; comments and other fields are skipped."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, body: bytes) -> list[bytes]:
        buffer = self._buffer + body if self._buffer else body
        if b"\r" in buffer:
            # JSON has no raw CR, so each belongs to a line end; the last may be half of a CRLF.
            tail = b"\r" if buffer.endswith(b"\r") else b""
            buffer = buffer[: len(buffer) - len(tail)].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + tail
        blocks = buffer.split(b"\n\n")
        self._buffer = blocks.pop()
        if len(self._buffer) > MAX_EVENT:
            raise BadResponse("event too long")
        events: list[bytes] = []
        for block in blocks:
            if b"\n" not in block and block.startswith(b"data: "):
                events.append(block[6:])
            elif (data := _data_of(block)) is not None:
                events.append(data)
        return events

    def left_over(self) -> bytes:
        return self._buffer.strip()


def _data_of(block: bytes) -> bytes | None:
    lines: list[bytes] = []
    for line in block.split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line and not line.startswith((b":", b"event:", b"id:", b"retry:")):
            raise BadResponse("a line that is no SSE field")
    return b"\n".join(lines) if lines else None


def _status(line: bytes) -> int:
    parts = line.split(b" ", 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit() or len(parts[1]) != 3:
        raise BadResponse("bad status line")
    return int(parts[1])


def _chunk_size(line: bytes) -> int:
    digits = line.split(b";", 1)[0].strip()
    try:
        size = int(digits, 16)
    except ValueError:
        raise BadResponse("bad chunk size") from None
    if size < 0 or size > 1 << 40:
        raise BadResponse("bad chunk size")
    return size
