"""From a request to its choices: prompts become token ids, each answer gets its seed and its length.

Seeds: answer i of a prompt samples with (seed + i × an odd 64-bit constant) mod 2^63, so answer 0 is the one
that the same seed gives alone, and no two answers of a request share their noise. A request without a seed
gets a random one. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import secrets

import msgspec

from mesh.errors import RemoteError
from services.messages import ModelCard
from services.streamer.delivery import Delivery
from services.streamer.detokenize import Vocabulary
from services.streamer.errors import ApiError
from services.streamer.generation import Choice
from services.streamer.peers import Peers
from services.streamer.request import Prompt, Request, answer_length, too_long

SEED_BITS = 63
SEED_MASK = (1 << SEED_BITS) - 1
SEED_STEP = 0x9E3779B97F4A7C15


async def choices_of(
    request: Request, answer_id: str, peers: Peers, card: ModelCard, vocabulary: Vocabulary
) -> list[Choice]:
    encoded = await asyncio.gather(*(_encode(request, prompt, peers, card) for prompt in request.prompts))
    base = secrets.randbits(SEED_BITS) if request.seed is None else request.seed
    return [
        _choice(request, answer_id, number * request.n + answer, ids, seed_of(base, answer), card, vocabulary)
        for number, ids in enumerate(encoded)
        for answer in range(request.n)
    ]


def seed_of(base: int, answer: int) -> int:
    return (base + answer * SEED_STEP) & SEED_MASK


async def _encode(request: Request, prompt: Prompt, peers: Peers, card: ModelCard) -> list[int]:
    if isinstance(prompt, list):
        return prompt
    try:
        return await peers.encode(msgspec.structs.replace(prompt, max_tokens=card.max_context - 1))
    except RemoteError as error:
        raise encode_error(error, request, card) from error


REFUSALS = {"invalid": 400, "no_template": 400, "deadline": 504}


def encode_error(error: RemoteError, request: Request | None, card: ModelCard | None) -> ApiError:
    """A tokenizer's refusal as the client hears it."""
    if error.reason == "too_long" and request is not None and card is not None:
        return too_long(request, error.message, card.max_context)
    status = REFUSALS.get(error.reason, 500)
    return ApiError(status, error.message if status < 500 else "The tokenizer failed", code=error.reason)


def _choice(
    request: Request, answer_id: str, index: int, ids: list[int], seed: int, card: ModelCard,
    vocabulary: Vocabulary,
) -> Choice:  # fmt: skip
    length = answer_length(request, len(ids), card.max_context)
    sampling = msgspec.structs.replace(request.sampling, seed=seed, max_tokens=length)
    return Choice(
        index=index,
        request_id=f"{answer_id}-{index}",
        prompt=ids,
        sampling=sampling,
        speculation=request.speculation,
        priority=request.priority,
        cache_salt=request.cache_salt,
        delivery=Delivery(
            vocabulary.detokenizer(ids),
            request.stops,
            min_tokens=sampling.min_tokens,
            tokens_shown=request.return_token_ids or sampling.logprobs >= 0,
        ),
    )
