"""How an answer is to be made, from Python: the request fields of the HTTP API by their names (docs/use/http.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


class StructuredOutputsParams(dict[str, Any]):
    """vLLM's class of this name: StructuredOutputsParams(json=SCHEMA)."""


@dataclass
class SamplingParams:
    """The names and defaults are those of vLLM's class of this name. `logprobs`: of each token, and of so many most
    probable ones in its place; `structured_outputs`: {"json": SCHEMA}, {"regex": …}, {"choice": […]} or {"grammar": …};
    `speculation`: {"method": …, "num_speculative_tokens": …} of these answers alone; `more`: any other request field.
    The server checks the values."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    structured_outputs: Mapping[str, Any] | None = None
    speculation: Mapping[str, Any] | None = None
    prediction: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def body(self, chat: bool) -> dict[str, Any]:
        """The fields of a request."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "more"}
        body = {name: value for name, value in given.items() if value is not None}
        if body["ignore_eos"] is False:
            del body["ignore_eos"]
        if "logit_bias" in body:
            body["logit_bias"] = {str(token): bias for token, bias in body["logit_bias"].items()}
        if "prediction" in body:
            body["prediction"] = {"type": "content", "content": body["prediction"]}
        if chat and "logprobs" in body:
            body |= {"logprobs": True, "top_logprobs": body["logprobs"]}
        return body | dict(self.more)
