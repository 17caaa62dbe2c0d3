"""The door's writing path without sockets and without waiting: real HTTP connections over transports that remember
when something was written and how long it was, under a clock that is moved by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from fake_mesh import CARD, FakeMesh
from mesh_doubles.clock import FakeClock
from prometheus_client import CollectorRegistry
from small_tokenizer import byte_level_tokenizer

from services.api.strategies import Verification
from services.streamer.choice.answer_memory import AnswerMemory
from services.streamer.choice.delivery import Delivery, Piece
from services.streamer.choice.detokenize import Vocabulary
from services.streamer.choice.exchange import Exchange
from services.streamer.choice.generation import Choice, Ending
from services.streamer.choice.namespace import Caller
from services.streamer.choice.peers import Peers
from services.streamer.choice.turns import Turns
from services.streamer.door.answer import Streamed, failure
from services.streamer.door.connections import Connection, Connections
from services.streamer.door.metrics import RequestTimes, StreamerMetrics
from services.streamer.door.pacing import PacedStream, frame_size
from services.streamer.door.sse import EventStream
from services.streamer.openai.errors import ApiError
from services.streamer.openai.request import Request, RequestLimits, parse_chat

ASKS = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
LONGEST_ANSWER = 1000  # seconds of the clock
VOCABULARY = Vocabulary(byte_level_tokenizer())

# Seconds since the piece before it, which choice it is of, and its text.
Arrival = tuple[float, int, str]


class Wire(asyncio.Transport):
    """What an eavesdropper has: times and lengths. And what the client has: the bytes."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self._closing = False
        self.protocol: Connection | None = None
        self.writes: list[tuple[float, int]] = []
        self.bytes = b""

    def write(self, data: Any) -> None:
        self.writes.append((self._clock.now(), len(data)))
        self.bytes += bytes(data)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    def abort(self) -> None:
        self._closing = True

    def hang_up(self) -> None:
        self._closing = True
        assert self.protocol is not None
        self.protocol.connection_lost(None)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    @property
    def body(self) -> bytes:
        """What came in chunks, joined."""
        _, _, rest = self.bytes.partition(b"\r\n\r\n")
        body = b""
        while rest:
            length, _, rest = rest.partition(b"\r\n")
            body += rest[: int(length, 16)]
            rest = rest[int(length, 16) + 2 :]
        return body


def chat(**more: Any) -> Request:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True, **more}
    return parse_chat(body, RequestLimits())


def choice_of(request: Request, index: int) -> Choice:
    return Choice(
        index=index,
        request_id=f"r-{index}",
        prompt=[1],
        sampling=request.sampling,
        speculation=request.speculation,
        verification=Verification(),
        longest_draft=0,
        delivery=Delivery(VOCABULARY.detokenizer([]), min_tokens=0, tokens_shown=False),
    )


def exchange_of(request: Request, choices: list[Choice]) -> Exchange:
    """Nobody is asked: what workers would send is given to the audience."""
    mesh = FakeMesh()
    peers, answer_id = Peers(mesh.directory, mesh.node), "chatcmpl-" + "0" * 24
    memory = AnswerMemory(1 << 30)
    return Exchange(request, answer_id, Caller("", ""), CARD, 1e9, peers, VOCABULARY, Turns(), memory, choices=choices)


@dataclass
class Answers:
    """Answers that are played to the end of the writing path, any number of them side by side."""

    clock: FakeClock = field(default_factory=FakeClock)
    pace: float = 0.0  # 0: as it comes
    streams: list[EventStream] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    _connections: list[Connections] = field(default_factory=list)

    def play(self, arrivals: Sequence[Arrival], request: Request | None = None, fails: bool = False) -> Wire:
        wanted = request or chat()

        async def handler(http: web.BaseRequest) -> web.StreamResponse:
            stream = self._stream(http, wanted)
            self.streams.append(stream)
            try:
                return await _tell(stream, wanted, arrivals, self.clock.sleep, fails=fails)
            except Exception as error:
                self.failures.append(error)
                raise
            finally:
                stream.close()

        connections = Connections(limit=10, body_timeout=1000.0, write_timeout=1000.0)
        self._connections.append(connections)
        wire = Wire(self.clock)
        connection = connections.server(handler, max_body_bytes=1024)()
        assert isinstance(connection, Connection)
        wire.protocol = connection
        connection.connection_made(wire)
        connection.data_received(ASKS)
        return wire

    def _stream(self, http: web.BaseRequest, request: Request) -> EventStream:
        if not self.pace:
            return EventStream(http)
        size = frame_size(request, self.pace)
        return PacedStream(http, pace=self.pace, size=size, clock=self.clock)

    async def until_done(self, *wires: Wire) -> None:
        for _ in range(LONGEST_ANSWER):
            if all(wire.bytes.endswith(b"0\r\n\r\n") for wire in wires):
                break
            await self.clock.advance(1.0)
            if self.failures:
                raise self.failures[0]
        else:
            raise AssertionError(f"an answer has no end: {wires[0].bytes[-300:]!r}")
        for wire in wires:
            wire.hang_up()
        await self.clock.settle()


async def _tell(
    stream: EventStream, request: Request, arrivals: Sequence[Arrival],
    sleep: Callable[[float], Awaitable[None]], *, fails: bool,
) -> web.StreamResponse:  # fmt: skip
    choices = [choice_of(request, index) for index in range(request.choices)]
    watch = RequestTimes(StreamerMetrics(CollectorRegistry(), "m"))
    audience = Streamed(exchange_of(request, choices), stream, watch)
    for delay, index, text in arrivals:
        await sleep(delay)
        await audience.show(choices[index], Piece(text))
    if fails:
        audience.flush()
        return await stream.fail(failure(ApiError(500, "The target failed", code="engine")))
    endings = [Ending("stop", len(arrivals), 0, None) for _ in choices]
    for choice, ending in zip(choices, endings, strict=True):
        await audience.ended(choice, ending)
    return await audience.finish(endings)
