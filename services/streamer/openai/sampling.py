"""Reads the sampling parameters of a body; request.py reads the rest.

First checks that need only the body, then those that need the model card. Knows neither
sockets nor the mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Annotated, Any

import msgspec

from services.api.messages import ModelCard
from services.api.sampling import (
    LONGEST_BAD_WORD,
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_BIASES,
    PARAMETERS,
    Sampling,
)
from services.api.sampling_defaults import SamplingDefaults
from services.streamer.openai.errors import bad_value
from services.streamer.openai.fields import BodyFields, check_integer, check_list, check_number, shown, wrong_type

MAX_STOP_TOKEN_IDS = 128
MAX_BAD_WORD_TEXTS = 256
MAX_BAD_WORD_CHARACTERS = 256
MAX_TOKEN_ID = 2**31 - 1
MAX_IDS = 2**20  # in one list: the longest context
_IDS = list[Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]]


def read_sampling(fields: BodyFields, max_tokens: int | None, logprobs: int, defaults: SamplingDefaults) -> Sampling:
    given: dict[str, Any] = {}
    for row in PARAMETERS.values():
        value = READERS[row.name](fields) if row.name in READERS else fields.read(row)
        if value is None and row.of_model:
            value = getattr(defaults, row.name)
        if value is not None:
            given[row.attribute] = value
    sampling = Sampling(logprobs=logprobs, **given)
    if max_tokens is not None and sampling.min_tokens > max_tokens:
        raise bad_value("min_tokens", f"is greater than max_tokens ({max_tokens})")
    return sampling


def read_bad_words(fields: BodyFields) -> tuple[str, ...]:
    value = fields.get("bad_words")
    if value is None:
        return ()
    words = check_list(value, "bad_words", MAX_BAD_WORD_TEXTS)
    for index, word in enumerate(words):
        where = f"bad_words[{index}]"
        if not isinstance(word, str):
            raise wrong_type(where, "a string", word)
        if not 1 <= len(word) <= MAX_BAD_WORD_CHARACTERS:
            raise bad_value(where, f"must have 1..{MAX_BAD_WORD_CHARACTERS} characters")
    return tuple(words)


def _bad_words_token_ids(fields: BodyFields) -> list[list[int]]:
    """Lists of ids; a single id is a word of one token."""
    value = fields.get("bad_words_token_ids")
    if value is None:
        return []
    words = []
    for index, each in enumerate(check_list(value, "bad_words_token_ids", MAX_BAD_WORDS)):
        where = f"bad_words_token_ids[{index}]"
        if isinstance(each, list):
            words.append(read_ids(check_list(each, where, LONGEST_BAD_WORD), where))
        else:
            words.append([check_integer(each, where, 0, MAX_TOKEN_ID)])
    return words


def _allowed_token_ids(fields: BodyFields) -> list[int]:
    value = fields.get("allowed_token_ids")
    if value is None:
        return []
    return read_ids(check_list(value, "allowed_token_ids", MAX_ALLOWED_TOKEN_IDS), "allowed_token_ids")


def _logit_bias(fields: BodyFields) -> dict[int, float]:
    value = fields.get("logit_bias")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong_type("logit_bias", "an object", value)
    if len(value) > MAX_BIASES:
        raise bad_value("logit_bias", f"has {len(value)} entries, at most {MAX_BIASES} are taken")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise bad_value("logit_bias", f"has a key that is no token id: {shown(key)}")
        token = check_integer(int(key), "logit_bias", 0, MAX_TOKEN_ID)
        biases[token] = check_number(bias, f"logit_bias.{token}", -100.0, 100.0)
    return biases


def _stop_token_ids(fields: BodyFields) -> list[int]:
    value = fields.get("stop_token_ids")
    if value is None:
        return []
    ids = check_list(value, "stop_token_ids", MAX_STOP_TOKEN_IDS)
    return [check_integer(each, "stop_token_ids", 0, MAX_TOKEN_ID) for each in ids]


def read_ids(value: list[Any], where: str) -> list[int]:
    if not value:
        raise bad_value(where, "is empty")
    check_list(value, where, MAX_IDS)
    try:
        # In C: a Python loop over up to MAX_IDS ids would block the event loop.
        return msgspec.convert(value, _IDS)
    except msgspec.ValidationError as error:
        index = int(str(error).rpartition("[")[2].rstrip("]`"))  # ... - at `$[index]`
        check_integer(value[index], f"{where}[{index}]", 0, MAX_TOKEN_ID)
        raise


# Of the parameters that are neither a number nor true or false.
READERS: dict[str, Callable[[BodyFields], Any]] = {
    "logit_bias": _logit_bias,
    "stop_token_ids": _stop_token_ids,
    "bad_words_token_ids": _bad_words_token_ids,
    "allowed_token_ids": _allowed_token_ids,
}


def check_sampling(wish: Sampling, card: ModelCard) -> None:
    check_ids(wish.stop_token_ids, "stop_token_ids", card.vocab_size)
    check_ids(wish.logit_bias, "logit_bias", card.vocab_size)
    check_ids(wish.allowed_token_ids, "allowed_token_ids", card.vocab_size)
    for word in wish.bad_words:
        check_ids(word, "bad_words_token_ids", card.vocab_size)
    check_something_is_left(wish, card)


def check_something_is_left(wish: Sampling, card: ModelCard) -> None:
    """What is allowed must not be forbidden, too: no token could ever be chosen."""
    if not wish.allowed_token_ids:
        return
    forbidden = {word[0] for word in wish.bad_words if len(word) == 1}
    if wish.min_tokens:
        forbidden.update(wish.stop_token_ids, () if wish.ignore_eos else card.eos_token_ids)
    if forbidden.issuperset(wish.allowed_token_ids):
        raise bad_value("allowed_token_ids", "holds only tokens that the request forbids elsewhere")


def check_ids(ids: Collection[int], where: str, vocab_size: int) -> None:
    if ids and (largest := max(ids)) >= vocab_size:
        raise bad_value(where, f"token id {largest} is not in the vocabulary of {vocab_size}", "out_of_range")
