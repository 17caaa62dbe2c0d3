"""Answers of the Messages API: a choice's pieces become one message, or its events while tokens come.

What is in a message and its events is in services/streamer/messages; answer.py generates the choices.
"""

from __future__ import annotations

import asyncio
import secrets

import orjson
from aiohttp import web

from services.streamer.agents.reader import Said
from services.streamer.choice import chat_shapes
from services.streamer.choice.delivery import Piece
from services.streamer.choice.exchange import Exchange
from services.streamer.choice.generation import Choice, Ending
from services.streamer.door.answer import A_MESSAGE, AnswerForm, Whole, run
from services.streamer.door.bodies import JSON
from services.streamer.door.metrics import RequestTimes
from services.streamer.door.sse import EventStream
from services.streamer.messages import answer, errors, events
from services.streamer.openai.request import Request


def new_id(request: Request) -> str:
    return "msg_" + secrets.token_hex(12)


async def message_whole(exchange: Exchange, http: web.BaseRequest, watch: RequestTimes) -> web.StreamResponse:
    (choice,) = exchange.choices
    with Whole(exchange, watch) as audience:
        (ending,) = await run(exchange, audience)
        watch.ended([choice], [ending])
        text = audience.wholes[choice.index].piece.text
    said = Said(content=text) if choice.reader is None else chat_shapes.read(choice.reader, text)
    told = answer.message(exchange.request, exchange.answer_id, choice, said, ending)
    return web.Response(body=orjson.dumps(told), content_type=JSON)


class StreamedMessage:
    """Writes pieces as events. Text that comes within one turn of the event loop leaves as one event."""

    def __init__(self, exchange: Exchange, stream: EventStream, watch: RequestTimes) -> None:
        self._exchange = exchange
        self._stream = stream
        self._watch = watch
        self._blocks = events.Blocks()
        self._texts: list[str] = []  # of this turn, not written yet

    async def show(self, choice: Choice, piece: Piece) -> None:
        await self._exchange.turns.take(A_MESSAGE)
        self._watch.arrived(choice.index)
        await self._begin(choice)
        self._write(Said(content=piece.text) if choice.reader is None else choice.reader.feed(piece.text))
        if self._stream.full:
            await self._stream.writable()

    async def ended(self, choice: Choice, ending: Ending) -> None:
        await self._begin(choice)
        if choice.reader is not None:
            self._write(choice.reader.flush())
            chat_shapes.count_reasoning(choice, self._exchange.vocabulary)
        self.flush()

    async def finish(self, choice: Choice, ending: Ending) -> web.StreamResponse:
        why = answer.ended(self._exchange.request, choice, ending)
        return await self._stream.end(events.end(self._blocks, why, answer.told(choice, ending)))

    def flush(self) -> None:
        """Write the texts of this turn. Repeat-safe."""
        if self._texts:
            text, self._texts = "".join(self._texts), []
            self._stream.write(self._blocks.text(text))

    async def _begin(self, choice: Choice) -> None:
        if not self._stream.started:
            await self._stream.start()
            self._stream.write(events.begin(answer.begun(self._exchange.request, self._exchange.answer_id, choice)))

    def _write(self, said: Said) -> None:
        if said.content and not said.reasoning and not said.calls:
            if not self._texts:
                asyncio.get_running_loop().call_soon(self.flush)
            self._texts.append(said.content)
        elif said:
            self.flush()
            self._stream.write(self._blocks.said(said))


async def message_streamed(exchange: Exchange, stream: EventStream, watch: RequestTimes) -> web.StreamResponse:
    audience = StreamedMessage(exchange, stream, watch)
    (choice,) = exchange.choices
    try:
        (ending,) = await run(exchange, audience)
    finally:
        audience.flush()
    watch.ended([choice], [ending])
    return await audience.finish(choice, ending)


MESSAGES = AnswerForm(new_id, message_whole, message_streamed, errors.failure)
