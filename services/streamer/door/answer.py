"""Generates a request's choices: as one body at the end, or as events while tokens come.

`Whole` and `Streamed` are the two audiences of generation.py. Knows OpenAI's shapes through responses.py and
sse.py; knows no routes.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from services.streamer.agents.reader import AnswerReader, Said
from services.streamer.choice import chat_shapes, responses
from services.streamer.choice.delivery import Piece, join
from services.streamer.choice.exchange import Exchange
from services.streamer.choice.generation import Audience, Choice, Ending, generate
from services.streamer.choice.lanes import in_lanes
from services.streamer.choice.responses import WholeChoice
from services.streamer.choice.turns import A_SLICE, NUMBERS_OF_A_UNIT, Turns
from services.streamer.door.bodies import JSON
from services.streamer.door.metrics import RequestTimes
from services.streamer.door.sse import DONE, ChunkForm, EventStream, event
from services.streamer.openai.errors import ApiError
from services.streamer.openai.request import Request

# Units of work (turns.py) of a message of tokens, whatever it holds.
A_MESSAGE = 5


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How an API has its answers. `failure`: the last event of a stream that fails."""

    new_id: Callable[[Request], str]
    whole: Callable[[Exchange, web.BaseRequest, RequestTimes], Awaitable[web.StreamResponse]]
    streamed: Callable[[Exchange, EventStream, RequestTimes], Awaitable[web.StreamResponse]]
    failure: Callable[[ApiError], bytes]


def new_id(request: Request) -> str:
    return ("chatcmpl-" if request.chat else "cmpl-") + secrets.token_hex(12)


async def run(exchange: Exchange, audience: Audience) -> list[Ending]:
    """Runs all choices to their end; the first that fails cancels the others."""
    choices = exchange.choices

    async def one(choice: Choice) -> Ending:
        ending = await generate(choice, exchange.peers, audience, exchange.deadline)
        await audience.ended(choice, ending)
        return ending

    return await in_lanes(one, choices, len(choices), exchange.turns, lambda choice: choice.work_to_send)


# Bytes that are kept for a token of an answer, besides what is written of it: its ids and its place.
KEPT_OF_A_TOKEN = 100


class Whole:
    """Keeps the pieces until the end of the block."""

    def __init__(self, exchange: Exchange, watch: RequestTimes) -> None:
        self._request = exchange.request
        self._vocabulary = exchange.vocabulary
        self._watch = watch
        self._turns = exchange.turns
        self._memory = exchange.memory.answer()
        self._texts: dict[int, list[str]] = {each.index: [] for each in exchange.choices}
        self.wholes = {each.index: WholeChoice(each, Piece("")) for each in exchange.choices}
        for each in self.wholes.values():  # a choice may have no tokens
            self._write_logprobs(each, Piece(""))

    def __enter__(self) -> Whole:
        return self

    def __exit__(self, *error: object) -> None:
        self.wholes.clear()
        self._memory.close()

    async def show(self, choice: Choice, piece: Piece) -> None:
        whole = self.wholes[choice.index]
        self._memory.grow(len(piece.text) + KEPT_OF_A_TOKEN * len(piece.ids))
        for part in responses.slices_of(self._request, piece):
            work = responses.work_of(self._request, part)
            whole.work += work
            await self._turns.take(A_MESSAGE + work)
            self._write_logprobs(whole, part)
        self._texts[choice.index].append(piece.text)
        if piece.of_prompt:
            return
        self._watch.arrived(choice.index)
        whole.piece.ids += piece.ids
        whole.piece.offsets += piece.offsets
        join(whole.piece.runs, piece.runs)

    def _write_logprobs(self, whole: WholeChoice, part: Piece) -> None:
        before = whole.logprobs.size + whole.of_prompt.size
        whole.logprobs.add(responses.logprobs(self._request, part, self._vocabulary) or {})
        if part.of_prompt:
            whole.of_prompt.add(responses.prompt_logprobs(self._request, part, self._vocabulary))
        self._memory.grow(whole.logprobs.size + whole.of_prompt.size - before)

    async def ended(self, choice: Choice, ending: Ending) -> None:
        whole = self.wholes[choice.index]
        whole.piece.text = "".join(self._texts[choice.index])
        if self._request.return_token_ids:
            whole.work += len(choice.prompt) // NUMBERS_OF_A_UNIT
        chat_shapes.count_reasoning(choice, self._vocabulary)


async def answer_whole(exchange: Exchange, http: web.BaseRequest, watch: RequestTimes) -> web.StreamResponse:
    with Whole(exchange, watch) as audience:
        endings = await run(exchange, audience)
        watch.ended(exchange.choices, endings)
        opening = responses.head(exchange.request, exchange.answer_id, int(time.time()))
        wholes = list(audience.wholes.values())
        parts = responses.whole(exchange.request, opening, wholes, endings, exchange.vocabulary)
        return await written(http, exchange.turns, parts, sum(each.work for each in wholes), A_SLICE)


async def written(
    http: web.BaseRequest, turns: Turns, parts: Iterator[bytes], work: int, each: int
) -> web.StreamResponse:
    """Sends a body of JSON in parts. `work`: of all of them, and `each`: of one, in the units of turns.py."""
    if work <= A_SLICE:
        return web.Response(body=b"".join(parts), content_type=JSON)
    response = web.StreamResponse()
    response.content_type = JSON
    await response.prepare(http)
    while True:
        await turns.take(each)
        if (part := next(parts, None)) is None:
            break
        if part:
            await response.write(part)
    await response.write_eof()
    return response


class Streamed:
    """Writes pieces as events. Text that comes within one turn of the event loop leaves as one event: under
    load that saves most of the system calls, without any delay."""

    def __init__(self, exchange: Exchange, stream: EventStream, watch: RequestTimes) -> None:
        self._request = request = exchange.request
        self._choices = exchange.choices
        self._vocabulary = exchange.vocabulary
        self._stream = stream
        self._watch = watch
        self._turns = exchange.turns
        self._opening = responses.head(request, exchange.answer_id, int(time.time()))
        asked = request.return_token_ids or request.return_provenance or request.continuous_usage
        self._plain = request.sampling.logprobs < 0 and not asked
        self._forms = {
            each.index: ChunkForm(self._opening, each.index, chat=request.chat, usage_asked=request.include_usage)
            for each in exchange.choices
        }
        self._begun: set[int] = set()
        self._texts: dict[int, list[str]] = {}  # of this turn, not written yet

    async def show(self, choice: Choice, piece: Piece) -> None:
        if self._plain:
            await self._turns.take(A_MESSAGE)
        if not piece.of_prompt:
            self._watch.arrived(choice.index)
        if choice.index not in self._begun:
            await self._begin(choice)
        if choice.reader is not None:
            await self._show_said(choice, choice.reader, piece)
        elif self._plain:
            if piece.text:
                self._write_soon(choice.index, piece.text)
        else:
            await self._show_tokens(choice, piece)
        if self._stream.full:
            await self._stream.writable()

    async def _show_tokens(self, choice: Choice, piece: Piece) -> None:
        """What came at once may be all that waited for a slow reader."""
        for part in responses.slices_of(self._request, piece):
            await self._turns.take(A_MESSAGE + responses.work_of(self._request, part))
            if part.text or part.ids:
                self._stream.write(self._rich(choice, part))

    async def _show_said(self, choice: Choice, reader: AnswerReader, piece: Piece) -> None:
        """What the tokens of a piece tell of them leaves with it, even where its text is held by the reader."""
        if self._plain:
            self._write_said(choice, reader.feed(piece.text), piece)
            return
        for part in responses.slices_of(self._request, piece):
            await self._turns.take(A_MESSAGE + responses.work_of(self._request, part))
            self._write_said(choice, reader.feed(part.text), part)

    def _write_said(self, choice: Choice, said: Said, piece: Piece) -> None:
        if self._plain and said.content and not said.reasoning and not said.calls:
            self._write_soon(choice.index, said.content)
        elif said or piece.ids:
            self.flush()
            self._stream.write(self._rich(choice, piece, chat_shapes.delta(said)))

    def _write_soon(self, index: int, text: str) -> None:
        if not self._texts:
            asyncio.get_running_loop().call_soon(self.flush)
        texts = self._texts.get(index)
        if texts is None:
            self._texts[index] = [text]
        else:
            texts.append(text)

    def flush(self) -> None:
        """Write the texts of this turn. Repeat-safe."""
        if self._texts:
            turn, self._texts = self._texts, {}
            self._stream.write(b"".join([self._forms[index].text("".join(t)) for index, t in turn.items()]))

    async def ended(self, choice: Choice, ending: Ending) -> None:
        if choice.index not in self._begun:
            await self._begin(choice)
        if choice.reader is not None:
            self._write_said(choice, choice.reader.flush(), Piece(""))
            chat_shapes.count_reasoning(choice, self._vocabulary)
        self.flush()
        more: dict[str, Any] = {"stop_reason": ending.stop, **responses.ended(self._request, choice)}
        if self._request.return_token_ids:
            await self._turns.take(len(choice.prompt) // NUMBERS_OF_A_UNIT)
            more["prompt_token_ids"] = choice.prompt
        usage = self._usage_of(choice, ending.completion_tokens)
        self._stream.write(self._forms[choice.index].finish(chat_shapes.reason(choice, ending), more, usage))

    async def finish(self, endings: Sequence[Ending]) -> web.StreamResponse:
        if not (self._request.include_usage or self._request.return_timeline):
            return await self._stream.end()
        closing: dict[str, Any] = {**self._opening, "choices": []}
        if self._request.include_usage:
            closing["usage"] = responses.usage(self._choices, endings)
        return await self._stream.end(event(closing | responses.metrics(self._choices)) + DONE)

    async def _begin(self, choice: Choice) -> None:
        self._begun.add(choice.index)
        await self._stream.start()
        # What was generated comes with the chunk that shows it.
        if role := self._forms[choice.index].role(self._usage_of(choice, 0)):
            self._stream.write(role)

    def _usage_of(self, choice: Choice, generated: int | None = None) -> dict[str, int] | None:
        if not self._request.continuous_usage:
            return None
        return responses.usage_so_far(choice, choice.delivery.count if generated is None else generated)

    def _rich(self, choice: Choice, piece: Piece, delta: dict[str, Any] | None = None) -> bytes:
        """`delta`: of a choice with a reader."""
        logprobs = responses.logprobs(self._request, piece, self._vocabulary)
        told = responses.tokens(self._request, piece, self._vocabulary)
        form, usage = self._forms[choice.index], self._usage_of(choice)
        if delta is None:
            return form.chunk(piece.text, logprobs, told, usage)
        return form.delta(delta, logprobs, told, usage)


async def answer_streamed(exchange: Exchange, stream: EventStream, watch: RequestTimes) -> web.StreamResponse:
    audience = Streamed(exchange, stream, watch)
    try:
        endings = await run(exchange, audience)
    finally:
        audience.flush()
    watch.ended(exchange.choices, endings)
    return await audience.finish(endings)


def failure(error: ApiError) -> bytes:
    """There is no [DONE] behind it."""
    return event(error.body())


OPENAI = AnswerForm(new_id, answer_whole, answer_streamed, failure)
