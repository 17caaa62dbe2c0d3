"""Corpora over HTTP: texts become token ids and go to a proposer, its cards become bodies.

    body ─▶ CorpusPart ─▶ texts encoded, piece by piece ─▶ AddCorpus ─▶ card        (one part a request)

A corpus that is larger than a body comes in parts, numbered from 0; the proposer keeps their order, and builds when the
last is in. Texts come in the body: a path or a URL from a request is never followed. SGLang's three routes are the
same under other names. Knows OpenAI's error body; knows no sockets.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mesh.errors import RemoteError
from services.api.messages import LONGEST_SALT, AddCorpus, CorpusCard, Encode, ListCorpora, ModelCard, RemoveCorpus
from services.api.names import NAME_RULE, is_name
from services.api.texts import pieces
from services.streamer.choice.encoding import encode_error
from services.streamer.choice.peers import Peers
from services.streamer.openai.errors import ApiError, bad_value, unsupported
from services.streamer.openai.fields import BodyFields, check_list, shown, wrong_type
from services.streamer.openai.sampling import check_ids, read_ids

MAX_TEXTS = 4096  # of a part
MAX_PARTS = 1_000_000
# With five bytes an id a part stays below what one message of the mesh may hold.
MAX_PART_TOKENS = 700_000
# Characters sent to a tokenizer at a time, so that waiting requests are not delayed.
PIECE = 65536

# What a proposer may answer, and the status it is for the client.
REFUSALS = {"invalid": 400, "overloaded": 429, "unavailable": 503}


@dataclass(frozen=True, slots=True)
class CorpusPart:
    """A corpus, or a part of one. A text is text, or token ids that need no tokenizer."""

    name: str
    texts: Sequence[str | list[int]]
    number: int = 0
    last: bool = True
    namespace: str = ""
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class CorpusPlace:
    """The owner of corpora, besides the API key: the query's fields."""

    namespace: str = ""
    cache_salt: str = ""


# Bodies and queries -------------------------------------------------------------------------------------


def parse_part(values: dict[str, Any]) -> CorpusPart:
    fields = BodyFields(values)
    name = _name(fields, "name")
    texts = _texts(fields, "text", "texts")
    last = fields.boolean("last") if fields.get("last") is not None else True
    part = CorpusPart(
        name=name,
        texts=texts,
        number=fields.integer("part", 0, MAX_PARTS) or 0,
        last=last,
        namespace=_optional_name(fields.text("namespace", LONGEST_SALT)),
        cache_salt=fields.text("cache_salt", LONGEST_SALT) or "",
    )
    fields.nothing_else()
    return part


def parse_external(values: dict[str, Any]) -> CorpusPart:
    """SGLang's /add_external_corpus."""
    fields = BodyFields(values)
    fields.only("file_path")  # a path on the server's disk: never read for a request
    given = fields.get("corpus_id")
    name = _name(fields, "corpus_id") if given is not None else f"corpus-{secrets.token_hex(8)}"
    chunks = fields.get("token_chunks")
    if chunks is not None:
        fields.only("documents", [])
        texts: Sequence[str | list[int]] = [
            read_ids(check_list(each, f"token_chunks[{index}]", MAX_PART_TOKENS), f"token_chunks[{index}]")
            for index, each in enumerate(check_list(chunks, "token_chunks", MAX_TEXTS))
        ]
    else:
        texts = _texts(fields, None, "documents")
    fields.nothing_else()
    return CorpusPart(name, texts)


def parse_removal(values: dict[str, Any]) -> str:
    """SGLang's /remove_external_corpus: the name."""
    fields = BodyFields(values)
    name = _name(fields, "corpus_id")
    fields.nothing_else()
    return name


def parse_place(query: Mapping[str, str]) -> CorpusPlace:
    for name in query:
        if name not in ("namespace", "cache_salt"):
            raise unsupported(name[:60])
    salt = query.get("cache_salt", "")
    if len(salt) > LONGEST_SALT:
        raise bad_value("cache_salt", f"is longer than {LONGEST_SALT} characters", "string_above_max_length")
    return CorpusPlace(_optional_name(query.get("namespace")), salt)


def check_name(name: str, where: str = "name") -> str:
    if not is_name(name):
        raise bad_value(where, f"{NAME_RULE}; not {shown(name)}")
    return name


def _name(fields: BodyFields, field: str) -> str:
    name = fields.text(field, LONGEST_SALT)
    if name is None:
        raise bad_value(field, "is missing", "missing_required_parameter")
    return check_name(name, field)


def _optional_name(name: str | None) -> str:
    return check_name(name, "namespace") if name else ""


def _texts(fields: BodyFields, single: str | None, several: str) -> list[str]:
    value = fields.get(several)
    text = fields.get(single) if single else None
    if single and text is not None:
        if value is not None:
            raise bad_value(several, f"contradicts {single}")
        value, several = [text], single
    if value is None:
        raise bad_value(several, "is missing", "missing_required_parameter")
    texts = check_list(value, several, MAX_TEXTS)
    for index, each in enumerate(texts):
        if not isinstance(each, str):
            raise wrong_type(f"{several}[{index}]", "a string", each)
    return texts


# The way to a proposer ----------------------------------------------------------------------------------


async def add(part: CorpusPart, namespace: str, peers: Peers) -> CorpusCard:
    model = await peers.card()
    texts = await encoded(part, peers, model)
    message = AddCorpus(
        namespace=namespace,
        name=part.name,
        vocabulary=model.vocabulary,
        part=part.number,
        texts=texts,
        last=part.last,
    )
    for card in await _ask(peers, message):
        if card.name == part.name:
            return card
    raise ApiError(500, "The proposer took the corpus and does not know it", code="internal_error")


async def remove(name: str, namespace: str, peers: Peers) -> None:
    """A proposer accepts the removal of a corpus that doesn't exist; here it is an error: the name may be mistyped."""
    if all(card.name != name for card in await known(namespace, peers)):
        raise ApiError(404, f"There is no corpus {name!r}", param="name", code="corpus_not_found")
    vocabulary = (await peers.card()).vocabulary
    await _ask(peers, RemoveCorpus(namespace=namespace, name=name, vocabulary=vocabulary))


async def known(namespace: str, peers: Peers) -> list[CorpusCard]:
    vocabulary = (await peers.card()).vocabulary
    return await _ask(peers, ListCorpora(namespace=namespace, vocabulary=vocabulary))


async def _ask(peers: Peers, message: AddCorpus | RemoveCorpus | ListCorpora) -> list[CorpusCard]:
    try:
        return await peers.corpora(message)
    except RemoteError as error:
        status = REFUSALS.get(error.reason, 500)
        told = error.message if status < 500 else "The proposer failed"
        raise ApiError(status, told, code=error.reason) from error


async def encoded(part: CorpusPart, peers: Peers, card: ModelCard) -> list[list[int]]:
    """The part's texts as token ids, those without any left out."""
    left = MAX_PART_TOKENS
    texts: list[list[int]] = []
    for index, text in enumerate(part.texts):
        if isinstance(text, str):
            ids = await _ids_of(text, peers, left)
        else:
            check_ids(text, f"token_chunks[{index}]", card.vocab_size)
            ids = text
        left -= len(ids)
        if left < 0:
            raise _too_large()
        if ids:
            texts.append(ids)
    return texts


async def _ids_of(text: str, peers: Peers, most: int) -> list[int]:
    ids: list[int] = []
    for piece in pieces(text, PIECE):
        if len(ids) >= most:
            raise _too_large()
        message = Encode(text=piece, add_special_tokens=False, max_tokens=most - len(ids))
        try:
            ids += await peers.encode(message)
        except RemoteError as error:
            raise _too_large() if error.reason == "too_long" else encode_error(error, None, None) from error
    return ids


def _too_large() -> ApiError:
    message = f"A part has more than {MAX_PART_TOKENS} tokens; send the corpus in several (part: 0, 1, …; last: false)"
    return ApiError(413, message, code="request_too_large")


# Answers ------------------------------------------------------------------------------------------------


def card_body(card: CorpusCard) -> dict[str, Any]:
    return {
        "object": "corpus",
        "name": card.name,
        "state": card.state,
        "texts": card.texts,
        "tokens": card.tokens,
        "progress": card.progress,
        "message": card.message,
    }


def list_body(cards: list[CorpusCard]) -> dict[str, Any]:
    return {"object": "list", "data": [card_body(card) for card in cards]}


def removed_body(name: str) -> dict[str, Any]:
    return {"object": "corpus.deleted", "name": name, "deleted": True}


def external_body(card: CorpusCard) -> dict[str, Any]:
    told = card.message or f"{card.state}; drafts come from it when it is ready"
    return {"success": True, "corpus_id": card.name, "message": told, "loaded_token_count": card.tokens}


def external_list_body(cards: list[CorpusCard]) -> dict[str, Any]:
    counts = {card.name: card.tokens for card in cards if card.state == "ready"}
    return {"success": True, "corpus_token_counts": counts, "message": ""}
