"""Answers of /v1/responses: a choice's pieces become one response, or its events while tokens come.

What is in a response and its events is in services/streamer/responses; answer.py generates the choice.
"""

from __future__ import annotations

import secrets

from aiohttp import web

from services.streamer.choice.exchange import Exchange
from services.streamer.door.answer import AnswerForm, run
from services.streamer.door.bodies import JSON
from services.streamer.door.metrics import RequestTimes
from services.streamer.door.sse import EventStream
from services.streamer.openai.errors import ApiError
from services.streamer.openai.request import Request
from services.streamer.responses.answer import ResponseAnswer
from services.streamer.responses.kept import OwnResponses


def new_id(request: Request) -> str:
    return "resp_" + secrets.token_hex(12)


def response_form(kept: OwnResponses) -> AnswerForm:
    """Of one request. `kept`: where its caller's responses are kept."""
    one = _OneResponse(kept)
    return AnswerForm(new_id, one.whole, one.streamed, one.failure)


class _OneResponse:
    """What an error of a stream under way continues: the events so far."""

    def __init__(self, kept: OwnResponses) -> None:
        self._kept = kept
        self._answer: ResponseAnswer | None = None

    async def whole(self, exchange: Exchange, http: web.BaseRequest, watch: RequestTimes) -> web.StreamResponse:
        answer = ResponseAnswer(exchange, watch.arrived, self._kept)
        endings = await run(exchange, answer)
        watch.ended(exchange.choices, endings)
        return web.Response(body=answer.body(endings), content_type=JSON)

    async def streamed(self, exchange: Exchange, stream: EventStream, watch: RequestTimes) -> web.StreamResponse:
        self._answer = answer = ResponseAnswer(exchange, watch.arrived, self._kept, stream)
        endings = await run(exchange, answer)
        watch.ended(exchange.choices, endings)
        return await stream.end(answer.last(endings))

    def failure(self, error: ApiError) -> bytes:
        assert self._answer is not None, "its stream is under way"
        return self._answer.failed(error)
