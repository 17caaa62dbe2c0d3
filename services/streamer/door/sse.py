"""Server-sent events as OpenAI's clients expect them, built from byte strings made once per request.

    role delta ─▶ text deltas … ─▶ finish chunk ─▶ (usage chunk) ─▶ [DONE]
                       └─▶ error object, end

A text delta is constant bytes around one JSON string. Knows the wire form of a stream; knows no mesh. Events are
sent as they come; pacing.py has the stream with fixed packets.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson
from aiohttp import web
from aiohttp.http import HttpVersion11

from services.streamer.door.connections import Connection

DONE: Final = b"data: [DONE]\n\n"
HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # proxies pass each event on at once
}


# A chunk that is nothing but text: what is before, the inside of its JSON string, what is behind. A quote within a
# string of JSON is never bare, so neither border can be found in a text or a model's name.
_TEXT_CHUNK = re.compile(
    rb'(.*?"(?:delta":\{"content|text)":")(.*)("\}?,"logprobs":null,"finish_reason":null\}\](?:,"usage":null)?\}\n\n)',
    re.DOTALL,
)
# The same of Anthropic's events, where a message has one block at a time.
_TEXT_DELTA = re.compile(
    rb'(event: content_block_delta\ndata: [^\n]*"delta":\{"type":"text_delta","text":")(.*)("\}\}\n\n)', re.DOTALL
)


def event(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def around_text(chunk: bytes) -> tuple[bytes, bytes, bytes] | None:
    """A chunk of text alone in three parts; chunks with the same first and last part are one when their middles are
    joined. None for any other event."""
    found = _TEXT_CHUNK.fullmatch(chunk) or _TEXT_DELTA.fullmatch(chunk)
    return None if found is None else (found[1], found[2], found[3])


Usage = dict[str, int] | None


class ChunkForm:
    """The constant bytes of one choice's chunks."""

    __slots__ = ("_after_text", "_before", "_before_text", "_chat", "_tail")

    def __init__(self, head: dict[str, Any], index: int, *, chat: bool, usage_asked: bool) -> None:
        self._chat = chat
        opened = orjson.dumps(head)[:-1]
        self._before = b"data: " + opened + b',"choices":[{"index":%d,' % index
        # OpenAI puts usage: null into every chunk but the last once usage was asked for.
        self._tail = b'}],"usage":null}\n\n' if usage_asked else b"}]}\n\n"
        text = b'"delta":{"content":' if chat else b'"text":'
        self._before_text = self._before + text
        closed = b"}," if chat else b","
        self._after_text = closed + b'"logprobs":null,"finish_reason":null' + self._tail

    def role(self, usage: Usage = None) -> bytes:
        """The first chunk of a chat choice; completions have none. `usage`: here and below, of the choice so far, for
        those who want it with every chunk."""
        if not self._chat:
            return b""
        delta = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
        return self._before + delta + self._end(usage)

    def text(self, text: str) -> bytes:
        return self._before_text + orjson.dumps(text) + self._after_text

    def chunk(self, text: str, logprobs: dict[str, Any] | None, more: dict[str, Any], usage: Usage = None) -> bytes:
        """A text chunk that carries more than text."""
        if self._chat:
            return self.delta({"content": text}, logprobs, more, usage)
        return self._any({"text": text, "logprobs": logprobs, "finish_reason": None, **more}, usage)

    def delta(
        self, delta: dict[str, Any], logprobs: dict[str, Any] | None, more: dict[str, Any], usage: Usage = None
    ) -> bytes:
        """A chunk of a chat that has anything in it."""
        body = {"delta": delta}
        return self._any({**body, "logprobs": logprobs, "finish_reason": None, **more}, usage)

    def finish(self, reason: str, more: dict[str, Any], usage: Usage = None) -> bytes:
        body: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        return self._any({**body, "logprobs": None, "finish_reason": reason, **more}, usage)

    def _any(self, fields: dict[str, Any], usage: Usage) -> bytes:
        return self._before + orjson.dumps(fields)[1:-1] + self._end(usage)

    def _end(self, usage: Usage) -> bytes:
        return self._tail if usage is None else b'}],"usage":' + orjson.dumps(usage) + b"}\n\n"


class EventStream:
    """The response under way. Headers leave with the first event, so an early failure keeps its status."""

    def __init__(self, http: web.BaseRequest, headers: Mapping[str, str] = HEADERS) -> None:
        self._http = http
        self._response = web.StreamResponse(headers=headers)
        self._chunked = http.version >= HttpVersion11
        self._transport: asyncio.Transport | None = None
        protocol = http.protocol
        assert isinstance(protocol, Connection)
        self._connection = protocol
        self._starting = asyncio.Lock()

    @property
    def started(self) -> bool:
        return self._transport is not None

    async def start(self) -> None:
        async with self._starting:  # n choices may have their first text together
            if self._transport is not None:
                return
            if self._chunked:
                self._response.enable_chunked_encoding()
            writer = await self._response.prepare(self._http)
            if writer is None or self._http.transport is None:
                raise ConnectionResetError("the client is gone")
            writer.send_headers()
            self._transport = self._http.transport

    def write(self, events: bytes) -> None:
        """Whole events. Past aiohttp's writer, whose coroutine per event costs more than the event."""
        transport = self._transport
        assert transport is not None
        if transport.is_closing():
            return  # the client is gone: this request is being cancelled
        transport.write(b"%x\r\n%b\r\n" % (len(events), events) if self._chunked else events)

    @property
    def full(self) -> bool:
        return self._connection.writing_paused

    async def writable(self) -> None:
        await self._connection.writable()

    async def end(self, last: bytes = DONE) -> web.StreamResponse:
        self.write(last)
        await self._written()
        await self._response.write_eof()
        return self._response

    async def fail(self, last: bytes) -> web.StreamResponse:
        """The stream was under way: an error is its last event."""
        self._response.force_close()
        return await self.end(last)

    async def _written(self) -> None:
        """Waits until what was written has left this object: at once, unless it is held back."""

    def close(self) -> None:
        """The answer has ended: nothing is written any more. Repeat-safe."""
