"""What a worker accepts in a Generate: one check, with the reason in words; and the bounds of its fields.

The meaning of the sampling parameters, and their order, is kernels/verify/README.md. The streamer checks what
users may ask; this is the last line, for whatever arrives on the socket.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.api.messages import Generate, Sampling

MAX_LOGPROBS = 20
MAX_BIASES = 1024
MAX_STOP_IDS = 1024
MAX_BAD_WORDS = 1024
LONGEST_BAD_WORD = 64
MAX_TOKENS = 1 << 31


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """The fields of the message Sampling for the runner, which also runs where nothing that carries messages is
    installed (bench/on_gpu.py)."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    logprobs: int = -1
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    bad_words: list[list[int]] = field(default_factory=list)
    allowed_token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: int = -1


_FIELDS = tuple(each.name for each in fields(SamplingParameters))


def parameters_of(sampling: Sampling) -> SamplingParameters:
    return SamplingParameters(*(getattr(sampling, name) for name in _FIELDS))


def problem(generate: Generate, vocab_size: int) -> str:
    """Why this can't be served, "" when it can."""
    ids = generate.token_ids
    if not ids:
        return "token_ids is empty"
    if not 1 <= generate.prompt_tokens <= len(ids):
        return "prompt_tokens lies outside token_ids"
    if min(ids) < 0 or max(ids) >= vocab_size:
        return f"token_ids holds ids outside 0..{vocab_size - 1}"
    return _sampling_problem(generate.sampling, vocab_size)


def _sampling_problem(sampling: Sampling, vocab_size: int) -> str:
    bounds = (
        ("temperature", sampling.temperature, 0.0, 1000.0),
        ("top_p", sampling.top_p, 0.0, 1.0),
        ("min_p", sampling.min_p, 0.0, 1.0),
        ("presence_penalty", sampling.presence_penalty, -100.0, 100.0),
        ("frequency_penalty", sampling.frequency_penalty, -100.0, 100.0),
        ("repetition_penalty", sampling.repetition_penalty, 1e-3, 1000.0),
        ("top_k", sampling.top_k, 0, MAX_TOKENS),
        ("logprobs", sampling.logprobs, -1, MAX_LOGPROBS),
        ("prompt_logprobs", sampling.prompt_logprobs, -1, MAX_LOGPROBS),
        ("max_tokens", sampling.max_tokens, 0, MAX_TOKENS),
        ("min_tokens", sampling.min_tokens, 0, MAX_TOKENS),
    )
    for name, value, low, high in bounds:
        # Written so that NaN fails, too.
        if not low <= value <= high:
            return f"{name} lies outside {low}..{high}"
    if len(sampling.logit_bias) > MAX_BIASES or len(sampling.stop_token_ids) > MAX_STOP_IDS:
        return "too many logit biases or stop ids"
    if any(not 0 <= token < vocab_size for token in sampling.logit_bias):
        return f"logit_bias names ids outside 0..{vocab_size - 1}"
    if any(not math.isfinite(bias) or abs(bias) > 1000.0 for bias in sampling.logit_bias.values()):
        return "logit_bias holds values outside -1000..1000"
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


def stop_ids(sampling: Sampling | SamplingParameters, eos_token_ids: tuple[int, ...]) -> frozenset[int]:
    """Ids that end the text: the request's, and the model's unless the request ignores them."""
    asked = frozenset(sampling.stop_token_ids)
    return asked if sampling.ignore_eos else asked | frozenset(eos_token_ids)
