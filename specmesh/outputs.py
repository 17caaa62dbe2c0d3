"""What a request from Python gives: the HTTP API's answer under the names of vLLM's classes."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TOKEN_ID = "token_id:"


@dataclass
class Logprob:
    """Of a token, or of one that could have stood in its place. `rank` 1 is the most probable; None: not known."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One answer. `logprobs`: for each token the chosen id and the most probable ones. `message`: of a chat, with its
    tool calls and reasoning."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: int | str | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    message: dict[str, Any] | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        if self.logprobs is None:
            return None
        return sum(each[token].logprob for each, token in zip(self.logprobs, self.token_ids, strict=False))


@dataclass
class RequestOutput:
    """All answers to a prompt. `acceptance`: how drafts did (metrics.speculative_decoding of the HTTP API)."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int | None = None
    acceptance: dict[str, Any] = field(default_factory=dict)
    finished: bool = True


@dataclass
class Streamed:
    """What came at once of the answer `index`. `sources`: of each step {source, drafted, accepted, tokens}."""

    index: int
    text: str
    token_ids: list[int]
    sources: list[dict[str, Any]]
    finish_reason: str | None = None
    reasoning: str = ""


@dataclass
class EmbeddingOutput:
    embedding: list[float]


@dataclass
class EmbeddingRequestOutput:
    request_id: str
    outputs: EmbeddingOutput
    num_prompt_tokens: int
    finished: bool = True


def embedding_of(body: Mapping[str, Any], request_id: str) -> EmbeddingRequestOutput:
    """`body`: with one embedding, in base64."""
    raw = base64.b64decode(body["data"][0]["embedding"])
    numbers = list(struct.unpack(f"<{len(raw) // 4}f", raw))
    return EmbeddingRequestOutput(request_id, EmbeddingOutput(numbers), body["usage"]["prompt_tokens"])


def output_of(body: Mapping[str, Any], prompt: str | None) -> RequestOutput:
    first = body["choices"][0]
    of_prompt = first.get("prompt_logprobs", body.get("prompt_logprobs"))
    details = body["usage"].get("prompt_tokens_details") or {}
    return RequestOutput(
        request_id=body["id"],
        prompt=prompt,
        prompt_token_ids=first.get("prompt_token_ids", body.get("prompt_token_ids", [])),
        outputs=[_answer(each) for each in body["choices"]],
        prompt_logprobs=None if of_prompt is None else [_of_prompt(each) for each in of_prompt],
        num_cached_tokens=details.get("cached_tokens"),
        acceptance=body.get("metrics", {}).get("speculative_decoding", {}),
    )


def _answer(choice: Mapping[str, Any]) -> CompletionOutput:
    message = choice.get("message")
    return CompletionOutput(
        index=choice["index"],
        text=choice["text"] if message is None else message.get("content") or "",
        token_ids=choice.get("token_ids", []),
        finish_reason=choice["finish_reason"],
        stop_reason=choice.get("stop_reason"),
        logprobs=_logprobs(choice.get("logprobs")),
        message=message,
    )


def _logprobs(told: Mapping[str, Any] | None) -> list[dict[int, Logprob]] | None:
    """Tokens are named by their ids."""
    if not told:
        return None
    if "content" in told:
        return [
            _ranked(_id(each["token"]), each["logprob"], {_id(t["token"]): t["logprob"] for t in each["top_logprobs"]})
            for each in told["content"]
        ]
    tops = told["top_logprobs"] or [{}] * len(told["tokens"])
    return [
        _ranked(_id(token), logprob, {_id(name): value for name, value in (top or {}).items()})
        for token, logprob, top in zip(told["tokens"], told["token_logprobs"], tops, strict=True)
    ]


def _ranked(token: int, logprob: float, top: Mapping[int, float]) -> dict[int, Logprob]:
    found = {token: Logprob(logprob)}
    for rank, (each, value) in enumerate(top.items(), 1):
        found[each] = Logprob(value, rank)
    return found


def _of_prompt(told: Mapping[str, Any] | None) -> dict[int, Logprob] | None:
    return None if told is None else {int(token): Logprob(**each) for token, each in told.items()}


def _id(name: str) -> int:
    return int(name.removeprefix(TOKEN_ID))
