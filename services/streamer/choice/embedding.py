"""Embeddings: each input is a choice that generates nothing, and takes generation.py's way through the mesh.

A request may have thousands of inputs: a few run at a time, and that is what its admission counts. Knows no HTTP.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass

import msgspec

from mesh.errors import RemoteError
from services.api.messages import Speculation
from services.api.methods import NAIVE
from services.api.sampling import Sampling
from services.api.strategies import Verification
from services.streamer.choice.delivery import Delivery, Piece
from services.streamer.choice.encoding import encode_error
from services.streamer.choice.exchange import AnyExchange
from services.streamer.choice.generation import Choice, Ending, generate
from services.streamer.choice.lanes import in_lanes
from services.streamer.openai.embeddings import MAX_TOKENS_IN_ALL, EmbeddingRequest, place_of
from services.streamer.openai.errors import ApiError, bad_value
from services.streamer.openai.prompts import Prompt

# Inputs of one request that are encoded or computed at a time.
MOST_AT_ONCE = 32


@dataclass(slots=True)
class EmbeddingExchange(AnyExchange[EmbeddingRequest]):
    """Of a request for embeddings. `lanes`: inputs that run at a time."""

    lanes: int


class Unheard:
    """generation.py's Audience: an embedding has no text that could be shown."""

    async def show(self, choice: Choice, piece: Piece) -> None: ...
    async def ended(self, choice: Choice, ending: Ending) -> None: ...


async def encode_inputs(exchange: EmbeddingExchange) -> None:
    """Fills in the choices."""
    prompts = exchange.request.prompts

    async def one(index: int) -> list[int]:
        return await _encode(exchange, index, prompts[index])

    encoded = await in_lanes(one, range(len(prompts)), exchange.lanes, exchange.turns)
    if (total := sum(map(len, encoded))) > MAX_TOKENS_IN_ALL:
        raise bad_value("input", f"has {total} tokens in all, at most {MAX_TOKENS_IN_ALL} are taken", "out_of_range")
    exchange.choices = [_choice(exchange, index, ids) for index, ids in enumerate(encoded)]


async def embed(exchange: EmbeddingExchange) -> list[Ending]:
    """Fills in the embeddings of the choices."""
    audience = Unheard()

    async def one(choice: Choice) -> Ending:
        return await generate(choice, exchange.peers, audience, exchange.deadline)

    return await in_lanes(one, exchange.choices, exchange.lanes, exchange.turns)


async def _encode(exchange: EmbeddingExchange, index: int, prompt: Prompt) -> list[int]:
    where, most = place_of(exchange.request, index), exchange.card.max_context
    ids = prompt
    if not isinstance(ids, list):
        try:
            ids = await exchange.peers.encode(msgspec.structs.replace(ids, max_tokens=most))
        except RemoteError as error:
            if error.reason == "too_long":
                raise _too_long(f"{where}: {error.message}") from error
            raise encode_error(error, None, None) from error
    if not ids:
        raise bad_value(where, "is empty")
    if len(ids) > most:
        raise _too_long(f"{where} has {len(ids)} tokens, the context holds {most}")
    return ids


def _too_long(message: str) -> ApiError:
    return ApiError(400, message, param="input", code="context_length_exceeded")


def _choice(exchange: EmbeddingExchange, index: int, ids: list[int]) -> Choice:
    request, caller = exchange.request, exchange.caller
    return Choice(
        index=index,
        request_id=f"{exchange.answer_id}-{index}",
        prompt=ids,
        sampling=Sampling(max_tokens=0),
        speculation=Speculation(method=NAIVE),
        verification=Verification(),
        longest_draft=0,
        delivery=Delivery(exchange.vocabulary.of_prompt(), min_tokens=0, tokens_shown=False),
        priority=request.priority,
        cache_salt=caller.cache_salt,
        caller=caller.name,
        pooling=request.pooling or exchange.card.pooling,
    )


def numbers_of(choice: Choice, request: EmbeddingRequest) -> array[float]:
    """The embedding as it is returned, float32."""
    numbers = array("f", choice.embedding)[: request.dimensions]
    length = math.hypot(*numbers) if request.normalize else 0.0
    return array("f", [number / length for number in numbers]) if length else numbers
