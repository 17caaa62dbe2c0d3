"""Parses the body of /v1/embeddings, or raises a 400 that names the field. Knows neither sockets nor the mesh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.api.messages import ModelCard
from services.api.parameters import integer, other, parameters
from services.api.pooling import POOLINGS
from services.streamer.openai import not_served
from services.streamer.openai.errors import bad_value
from services.streamer.openai.fields import BodyFields
from services.streamer.openai.prompts import Prompt, read_prompts
from services.streamer.openai.request import SHARED, read_model
from services.streamer.openai.sampling import check_ids

# Both as OpenAI's.
MAX_INPUTS = 2048
MAX_TOKENS_IN_ALL = 300_000
FLOAT, BASE64 = ENCODINGS = "float", "base64"

ENCODING_FORMAT = {
    "type": "string",
    "enum": list(ENCODINGS),
    "default": FLOAT,
    "description": "float: a list of numbers; base64: their float32 bytes, little-endian, which is smaller and faster",
}
POOLING = {
    "type": "string",
    "enum": list(POOLINGS),
    "description": "The hidden states that are the embedding: last: that of the last token; mean: their mean. Default: "
    "the server's setting",
}
NORMALIZE = {"type": "boolean", "default": True, "description": "Scale the embedding to length 1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OfEmbedding:
    """Fields that are used as they are sent."""

    dimensions: int | None = integer(
        None, "Return the first numbers of the embedding alone, before they are scaled; for models trained so "
        "(Matryoshka). Default: all", 1,
    )  # fmt: skip
    encoding_format: str = other(FLOAT, ENCODING_FORMAT)
    pooling: str = other("", POOLING)
    normalize: bool = other(True, NORMALIZE)


ROWS = parameters(OfEmbedding)
# Of those that generating requests have.
ALSO = {name: SHARED[name] for name in ("priority", "cache_salt")}
# Accepted because by definition it changes nothing about the answer.
WITHOUT_EFFECT = ("user",)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest(OfEmbedding):
    model: str
    prompts: list[Prompt]
    priority: int = 0
    cache_salt: str = ""


def parse_embeddings(values: dict[str, Any]) -> EmbeddingRequest:
    fields = BodyFields(values)
    model = read_model(fields)
    if (value := fields.get("input")) is None:
        raise bad_value("input", "is missing", "missing_required_parameter")
    prompts = read_prompts(value, "input", MAX_INPUTS)
    scale = fields.get("normalize")
    request = EmbeddingRequest(
        model=model,
        prompts=prompts,
        **fields.read_all({"dimensions": ROWS["dimensions"], **ALSO}),
        encoding_format=fields.choice("encoding_format", ENCODINGS) or FLOAT,
        pooling=fields.choice("pooling", POOLINGS) or "",
        normalize=True if scale is None else fields.boolean("normalize"),
    )
    not_served.check_not_asked(fields, not_served.EMBEDDINGS)
    for name in WITHOUT_EFFECT:
        fields.get(name)
    fields.nothing_else()
    return request


def check_against(request: EmbeddingRequest, card: ModelCard) -> None:
    """The checks that need the model card."""
    if request.dimensions is not None and request.dimensions > card.embedding_size:
        raise bad_value("dimensions", f"must be in 1..{card.embedding_size}, not {request.dimensions}", "out_of_range")
    for index, prompt in enumerate(request.prompts):
        if isinstance(prompt, list):
            check_ids(prompt, place_of(request, index), card.vocab_size)


def place_of(request: EmbeddingRequest, index: int) -> str:
    """An input's name in messages."""
    return f"input[{index}]" if len(request.prompts) > 1 else "input"
