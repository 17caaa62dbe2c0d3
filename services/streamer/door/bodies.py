"""The body of a request, from its headers to a JSON object, within limits of size, time, memory and structure.

    headers ─▶ type and size ─▶ reserved in the budget ─▶ received ─▶ structure counted ─▶ JSON object

Rule 1: memory for a body is reserved before it is read, and held until its request has ended.
Rule 2: a body whose objects would block the event loop is refused before they are made.
Knows neither routes nor fields.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from services.streamer.choice.admission import RETRY_BUSY
from services.streamer.door.connections import Connection
from services.streamer.openai.errors import ApiError
from services.streamer.openai.request import parse_json

JSON = "application/json"
# The objects of a body up to this size, in bytes, are made within some ms, whatever they are.
COUNTED_FROM = 65536


class Bodies:
    """Reads all bodies. `held`: the bytes reserved for those of the requests in progress."""

    def __init__(self, *, budget: int, max_items: int) -> None:
        self._budget = budget
        self._max_items = max_items
        self.held = 0

    async def json(self, http: web.BaseRequest) -> dict[str, Any]:
        body = await self._received(http)
        if len(body) > COUNTED_FROM:
            check_items(body, self._max_items)
            # Either takes some ms, and other requests get their turn in between.
            await asyncio.sleep(0)
        return parse_json(body)

    def release(self, http: web.BaseRequest) -> None:
        """The request has ended."""
        connection = _connection(http)
        self.held -= connection.body_bytes
        connection.body_bytes = 0

    def _reserve(self, connection: Connection, size: int) -> None:
        """`size` bytes in all for the body of this connection's request."""
        more = size - connection.body_bytes
        if more <= 0:
            return
        if self.held + more > self._budget:
            message = "The bodies of the requests in progress fill their memory; try again"
            raise ApiError(429, message, code="too_many_requests", retry_after=RETRY_BUSY)
        self.held += more
        connection.body_bytes = size

    async def _received(self, http: web.BaseRequest) -> bytearray:
        _check_content(http)
        connection = _connection(http)
        self._reserve(connection, http.content_length or 0)
        if "100-continue" in http.headers.get("Expect", "").lower() and http.transport is not None:
            http.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = bytearray()
        try:
            async with asyncio.timeout_at(connection.deadline):
                while chunk := await http.content.readany():
                    size = len(body) + len(chunk)
                    if size > http._client_max_size:
                        raise _body_too_large(http)
                    # A chunked body is reserved as it arrives.
                    self._reserve(connection, size)
                    body += chunk
        except TimeoutError:
            raise ApiError(408, "The body did not arrive in time", code="request_timeout") from None
        except (RequestPayloadError, ValueError) as error:
            raise ApiError(400, "The body is not valid HTTP", code="invalid_http") from error
        connection.body_read()
        return body


def check_items(body: bytes | bytearray, most: int) -> None:
    """Refuses more than `most` strings, lists and objects. To make millions of them would take up to a second, and
    numbers are cheap: this counts without making any."""
    if body.count(b'"') // 2 + body.count(b"[") + body.count(b"{") <= most:
        return
    # Texts hold quotes and brackets, too. Without what is escaped, every second piece between quotes is a text.
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    items = bare.count(b'"') // 2
    if items <= most:
        outside = b"".join(bare.split(b'"')[::2])
        items += outside.count(b"[") + outside.count(b"{")
    if items > most:
        message = f"The body has more than the {most} strings, lists and objects that are taken"
        raise ApiError(400, message, code="too_many_items")


def _check_content(http: web.BaseRequest) -> None:
    # A page of another origin can send text/plain without asking; it cannot send this.
    if http.content_type != JSON:
        raise ApiError(415, f"The Content-Type must be {JSON}", code="unsupported_media_type")
    if http.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ApiError(415, "A compressed body is not taken", code="unsupported_content_encoding")
    if (http.content_length or 0) > http._client_max_size:
        raise _body_too_large(http)


def _body_too_large(http: web.BaseRequest) -> ApiError:
    message = f"The body is larger than {http._client_max_size} bytes"
    return ApiError(413, message, code="request_too_large")


def _connection(http: web.BaseRequest) -> Connection:
    assert isinstance(http.protocol, Connection)
    return http.protocol
