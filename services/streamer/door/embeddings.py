"""Computes a request's embeddings and writes them in OpenAI's shape. Knows no routes."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator

import orjson
from aiohttp import web

from services.streamer.choice.embedding import EmbeddingExchange, embed, encode_inputs, numbers_of
from services.streamer.door.answer import written
from services.streamer.door.metrics import RequestTimes
from services.streamer.door.request_log import RequestRecord
from services.streamer.openai.embeddings import BASE64

assert sys.byteorder == "little", "base64 has the bytes as they are in memory"
# Numbers that are scaled and written in the time of a unit of work (turns.py).
NUMBERS_A_UNIT = 10


async def answer_embeddings(
    exchange: EmbeddingExchange, http: web.BaseRequest, watch: RequestTimes, record: RequestRecord
) -> web.StreamResponse:
    await encode_inputs(exchange)
    record.choices = exchange.choices
    watch.encoded()
    endings = await embed(exchange)
    watch.ended(exchange.choices, endings)
    each = 1 + exchange.card.embedding_size // NUMBERS_A_UNIT
    return await written(http, exchange.turns, _parts(exchange), each * len(endings), each)


def _parts(exchange: EmbeddingExchange) -> Iterator[bytes]:
    request, choices = exchange.request, exchange.choices
    yield b'{"object":"list","data":['
    for choice in choices:
        numbers = numbers_of(choice, request)
        told = base64.b64encode(numbers).decode() if request.encoding_format == BASE64 else numbers.tolist()
        body = orjson.dumps({"object": "embedding", "index": choice.index, "embedding": told})
        yield b"," + body if choice.index else body
    tokens = sum(len(choice.prompt) for choice in choices)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    yield b"]," + orjson.dumps({"model": request.model, "usage": usage})[1:]
