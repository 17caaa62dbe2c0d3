"""The sampling parameters, each with its range and meaning: one type from the HTTP API to the kernels.

The order in which they are applied is kernels/verify/README.md. Also what a worker accepts in a Generate: the streamer
checks what users may ask, and this is the last line, for whatever arrives on the socket. No msgspec, no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from services.api.parameters import LARGEST, boolean, integer, number, other, parameters

MAX_LOGPROBS = 20
MAX_BIASES = 1024
MAX_STOP_IDS = 1024
MAX_BAD_WORDS = 1024
LONGEST_BAD_WORD = 64
MAX_ALLOWED_TOKEN_IDS = 65536
MAX_GRAMMAR = 1 << 17  # characters
LONGEST_MARKER = 64

_ID: dict[str, Any] = {"type": "integer", "minimum": 0}
IDS: dict[str, Any] = {"type": "array", "items": _ID}
LOGIT_BIAS = {
    "type": "object",
    "description": "Token id to a number in -100..100 added to its logit",
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
}
STOP_TOKEN_IDS = {**IDS, "description": "Further tokens that end the answer; not part of its text"}
BAD_WORDS_TOKEN_IDS = {
    "type": "array",
    "items": {"oneOf": [_ID, {**IDS, "maxItems": LONGEST_BAD_WORD}]},
    "description": "Forbidden words as token ids; a single id is a word of one token",
    "maxItems": MAX_BAD_WORDS,
}
ALLOWED_TOKEN_IDS = {
    **IDS,
    "minItems": 1,
    "maxItems": MAX_ALLOWED_TOKEN_IDS,
    "description": "The only tokens that may be generated; the end of text isn't among them unless listed",
}


@dataclass(frozen=True, slots=True)
class ReasoningLimit:
    """An answer has at most this number of `tokens` between `opener` and `closer`; then the closer is forced.
    `inside`: the answer begins behind an opener; else it may begin with one."""

    tokens: int
    inside: bool
    opener: str
    closer: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """`seed` and `max_tokens` are those of one choice. `logprobs`: -1 none, 0 of the chosen token, k also of the k most
    probable; `prompt_logprobs` the same of the prompt, from its second token. The last id of one of `bad_words` may not
    follow its other ids; empty `allowed_token_ids` allow all. `grammar` is what the answer must be, as the streamer
    wrote it (streamer/agents/grammars.py); "": anything. `reasoning` limits its reasoning."""

    min_tokens: int = integer(0, "Minimum answer length, in tokens: no end of text and no stop string before it")
    temperature: float = number(0.0, "0: always the most probable token, ties to the lowest id", 0, 2, of_model=True)
    top_p: float = number(1.0, "Greater than 0", 0, 1, above=True, of_model=True)
    top_k: int = integer(0, "0 or -1: off", -1, floor=0, of_model=True)
    min_p: float = number(
        0.0, "Minimum probability of a token, relative to the most probable one", 0, 1, of_model=True
    )
    presence_penalty: float = number(0.0, "Subtracted from the logits of tokens already generated", -2, 2)
    frequency_penalty: float = number(
        0.0, "Subtracted from a token's logit once for each time it was generated", -2, 2
    )
    repetition_penalty: float = number(
        1.0, "Divides the logits of tokens in prompt and answer; greater than 0", 0, 10, above=True, of_model=True
    )
    logit_bias: dict[int, float] = other(dict, LOGIT_BIAS)
    ignore_eos: bool = boolean("Continue after the end of text")
    stop_token_ids: list[int] = other(list, STOP_TOKEN_IDS)
    bad_words: list[list[int]] = other(list, BAD_WORDS_TOKEN_IDS, name="bad_words_token_ids")
    allowed_token_ids: list[int] = other(list, ALLOWED_TOKEN_IDS)
    # Made of other fields of a request.
    grammar: str = ""
    reasoning: ReasoningLimit | None = None
    seed: int = 0
    max_tokens: int = 16
    logprobs: int = -1
    prompt_logprobs: int = -1


PARAMETERS = parameters(Sampling)
# What generation_config.json of a model may set.
OF_MODEL = {name: each for name, each in PARAMETERS.items() if each.of_model}
# By attribute: low, high, and whether low itself is out.
_BOUNDS: dict[str, tuple[float, float, bool]] = {
    each.attribute: (each.low if each.floor is None else each.floor, each.high, each.above)
    for each in PARAMETERS.values()
    if each.kind in ("number", "integer")
} | {
    "max_tokens": (0, LARGEST, False),
    "logprobs": (-1, MAX_LOGPROBS, False),
    "prompt_logprobs": (-1, MAX_LOGPROBS, False),
}


def problem(ids: list[int], prompt_tokens: int, sampling: Sampling, vocab_size: int) -> str:
    """Why this text can't be continued so, "" when it can."""
    if not ids:
        return "token_ids is empty"
    if not 1 <= prompt_tokens <= len(ids):
        return "prompt_tokens lies outside token_ids"
    if min(ids) < 0 or max(ids) >= vocab_size:
        return f"token_ids holds ids outside 0..{vocab_size - 1}"
    return _sampling_problem(sampling, vocab_size)


def _sampling_problem(sampling: Sampling, vocab_size: int) -> str:
    for name, (low, high, above) in _BOUNDS.items():
        value = getattr(sampling, name)
        # Written so that NaN fails, too.
        if not low <= value <= high or (above and value == low):
            return f"{name} lies outside {low}..{high}"
    if len(sampling.logit_bias) > MAX_BIASES or len(sampling.stop_token_ids) > MAX_STOP_IDS:
        return "too many logit biases or stop ids"
    if any(not 0 <= token < vocab_size for token in sampling.logit_bias):
        return f"logit_bias names ids outside 0..{vocab_size - 1}"
    if any(not math.isfinite(bias) or abs(bias) > 1000.0 for bias in sampling.logit_bias.values()):
        return "logit_bias holds values outside -1000..1000"
    if len(sampling.grammar) > MAX_GRAMMAR:
        return f"grammar is longer than {MAX_GRAMMAR} characters"
    if (limit := sampling.reasoning) is not None:
        if not 0 <= limit.tokens <= LARGEST:
            return f"reasoning.tokens lies outside 0..{LARGEST}"
        if not all(1 <= len(each) <= LONGEST_MARKER for each in (limit.opener, limit.closer)):
            return f"reasoning has a marker of no or over {LONGEST_MARKER} characters"
    return _lists_problem(sampling, vocab_size)


def _lists_problem(sampling: Sampling, vocab_size: int) -> str:
    words = sampling.bad_words
    if len(words) > MAX_BAD_WORDS or any(not 1 <= len(word) <= LONGEST_BAD_WORD for word in words):
        return f"bad_words holds more than {MAX_BAD_WORDS}, or one of no or over {LONGEST_BAD_WORD} ids"
    if any(not 0 <= token < vocab_size for word in words for token in word):
        return f"bad_words names ids outside 0..{vocab_size - 1}"
    allowed = sampling.allowed_token_ids
    if allowed and (min(allowed) < 0 or max(allowed) >= vocab_size):
        return f"allowed_token_ids names ids outside 0..{vocab_size - 1}"
    return ""


def stop_ids(sampling: Sampling, eos_token_ids: tuple[int, ...]) -> frozenset[int]:
    """Ids that end the text: the request's, and the model's unless the request ignores them. Behind the end of a
    grammar nothing follows but the model's."""
    asked = frozenset(sampling.stop_token_ids)
    return asked if sampling.ignore_eos and not sampling.grammar else asked | frozenset(eos_token_ids)
