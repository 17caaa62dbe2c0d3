"""The audience of a response's one choice: events of a stream, or one body at the end.

Both are made in the same way, so a stream ends with what would have been the body. Knows no routes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import orjson

from services.streamer.agents.reader import AnswerReader, Said
from services.streamer.choice import chat_shapes, responses
from services.streamer.choice.delivery import Piece, slices
from services.streamer.choice.exchange import Exchange
from services.streamer.choice.generation import Choice, Ending
from services.streamer.openai.errors import ApiError
from services.streamer.responses.body import ResponseRequest
from services.streamer.responses.kept import OwnResponses, kept_response
from services.streamer.responses.output import Event
from services.streamer.responses.telling import Telling, written

# Units of work (turns.py) of a message of tokens, whatever it holds.
A_MESSAGE = 5


class Stream(Protocol):
    """Where the events go."""

    async def start(self) -> None: ...

    def write(self, events: bytes) -> None: ...

    @property
    def full(self) -> bool: ...

    async def writable(self) -> None: ...


class ResponseAnswer:
    """`stream` None: only the body is wanted. `arrived`: called for each message of tokens, with the choice's index."""

    def __init__(
        self, exchange: Exchange, arrived: Callable[[int], None], kept: OwnResponses, stream: Stream | None = None
    ) -> None:
        assert isinstance(exchange.request, ResponseRequest)
        self._request = exchange.request
        self._exchange = exchange
        self._arrived = arrived
        self._kept = kept
        self._stream = stream
        self._telling = Telling(exchange.request, exchange.answer_id, int(time.time()))
        self._begun = False
        self._number = 0

    async def show(self, choice: Choice, piece: Piece) -> None:
        self._arrived(choice.index)
        # With log-probabilities each token goes with its own text, however many came at once.
        asked = self._request.sampling.logprobs >= 0
        for part in slices(piece, 1) if asked else (piece,):
            await self._exchange.turns.take(A_MESSAGE + responses.work_of(self._request, part))
            await self._told(self._telling.said(_read(choice.reader, part.text), self._logprobs(part)))

    async def ended(self, choice: Choice, ending: Ending) -> None:
        if choice.reader is not None:
            await self._told(self._telling.said(choice.reader.flush()))
            chat_shapes.count_reasoning(choice, self._exchange.vocabulary)
        await self._told(self._telling.ended(ending))

    def body(self, endings: Sequence[Ending]) -> bytes:
        """The whole response, which is kept if the request wants it."""
        body = orjson.dumps(self._telling.whole(self._exchange.choices, endings, int(time.time())))
        if self._request.store:
            response = kept_response(body, self._request.turns, self._telling.output)
            self._kept.keep(self._exchange.answer_id, response)
        return body

    def last(self, endings: Sequence[Ending]) -> bytes:
        """The last event of a stream."""
        kind = "completed" if endings[0].reason == "stop" else "incomplete"
        return self._written((f"response.{kind}", {"response": orjson.Fragment(self.body(endings))}))

    def failed(self, error: ApiError) -> bytes:
        return b"".join([self._written(each) for each in self._telling.failed(error)])

    async def _told(self, events: Iterable[Event]) -> None:
        stream = self._stream
        if stream is None:
            for _ in events:  # taken, they make the items
                pass
            return
        if not self._begun:
            self._begun = True
            await stream.start()
            await self._told(self._telling.begun())
        for each in events:
            stream.write(self._written(each))
            if stream.full:
                await stream.writable()

    def _written(self, event: Event) -> bytes:
        self._number += 1
        return written(event, self._number - 1)

    def _logprobs(self, part: Piece) -> bytes:
        """JSON without the brackets around it."""
        told = responses.logprobs(self._request, part, self._exchange.vocabulary)
        return b"" if told is None or not told["content"] else orjson.dumps(told["content"])[1:-1]


def _read(reader: AnswerReader | None, text: str) -> Said:
    if reader is not None:
        return reader.feed(text)
    return Said(content=text, parts=[text] if text else [])
