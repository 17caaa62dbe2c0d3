"""One response as it grows: what a reader reads of the answer becomes items, and events that tell of them.

The items follow the answer's text, however it came in pieces: reasoning, then messages and calls in their order. Pure:
values in, events out; sequence numbers are given to them as they are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from services.streamer.agents.reader import Said, SaidCall
from services.streamer.choice import responses
from services.streamer.choice.generation import Choice, Ending
from services.streamer.openai.errors import ApiError
from services.streamer.responses.body import ResponseRequest
from services.streamer.responses.output import (
    COMPLETED,
    IN_PROGRESS,
    INCOMPLETE,
    Event,
    FunctionCall,
    Message,
    Reasoning,
)

CREATED, IN_WORK = "response.created", "response.in_progress"
# What the response's error says of an error of these statuses; others are server_error.
CODES = {429: "rate_limit_exceeded"}


class Telling:
    """Of one response. Its events must be taken to the last of each call, as they are made while they are taken."""

    def __init__(self, request: ResponseRequest, response_id: str, created: int) -> None:
        self._opening: dict[str, Any] = {
            "id": response_id,
            "object": "response",
            "created_at": created,
            "model": request.model,
            "background": False,
            "max_tool_calls": None,
            "service_tier": "default",
            "truncation": "disabled",
            **request.told,
        }
        self._ended: list[dict[str, Any]] = []
        self._open: Message | Reasoning | FunctionCall | None = None
        self._logprobs: list[bytes] = []  # of tokens whose text isn't told yet

    @property
    def output(self) -> list[dict[str, Any]]:
        """The items that have ended."""
        return self._ended

    def begun(self) -> Iterator[Event]:
        body = self._response(IN_PROGRESS)
        yield CREATED, {"response": body}
        yield IN_WORK, {"response": body}

    def said(self, said: Said, logprobs: bytes = b"") -> Iterator[Event]:
        """More of the answer. `logprobs`: of its tokens, also of those that are no text of a message."""
        if logprobs:
            self._logprobs.append(logprobs)
        if said.reasoning:
            yield from self._reasoned(said.reasoning)
        for part in said.parts:
            yield from self._text(part) if isinstance(part, str) else self._call(part)

    def ended(self, ending: Ending) -> Iterator[Event]:
        if (self._open is None and not self._ended) or (isinstance(self._open, Message) and self._logprobs):
            yield from self._text("")
        yield from self._end(COMPLETED if ending.reason == "stop" else INCOMPLETE)

    def whole(self, choices: Sequence[Choice], endings: Sequence[Ending], now: int) -> dict[str, Any]:
        """The response of an answer that ended."""
        if endings[0].reason == "stop":
            body = self._response(COMPLETED, completed_at=now)
        else:
            body = self._response(INCOMPLETE, incomplete_details={"reason": "max_output_tokens"})
        return body | {"usage": _usage(choices, endings), **responses.metrics(choices)}

    def failed(self, error: ApiError) -> Iterator[Event]:
        """The last events of an answer that fails after its beginning."""
        yield "error", {"code": error.code, "message": error.message, "param": error.param}
        if self._open is not None:
            self._ended.append(self._open.item(INCOMPLETE))
        told = {"code": CODES.get(error.status, "server_error"), "message": error.message}
        yield "response.failed", {"response": self._response("failed", error=told)}

    def _reasoned(self, text: str) -> Iterator[Event]:
        item = self._open
        if not isinstance(item, Reasoning):
            yield from self._end(COMPLETED)
            self._open = item = Reasoning(len(self._ended))
            yield from item.begun()
        yield from item.more(text)

    def _text(self, text: str) -> Iterator[Event]:
        item = self._open
        if not isinstance(item, Message):
            yield from self._end(COMPLETED)
            self._open = item = Message(len(self._ended))
            yield from item.begun()
        logprobs, self._logprobs = b",".join(self._logprobs), []
        if text or logprobs:
            yield from item.more(text, logprobs)

    def _call(self, call: SaidCall) -> Iterator[Event]:
        item = self._open
        if not isinstance(item, FunctionCall) or item.call_index != call.index:
            yield from self._end(COMPLETED)
            self._open = item = FunctionCall(len(self._ended), call)
            yield from item.begun()
        if call.arguments:
            yield from item.more(call.arguments)

    def _end(self, status: str) -> Iterator[Event]:
        """The open item, if there is one, is over."""
        if self._open is None:
            return
        item, self._open = self._open, None
        yield from item.ended(status)
        self._ended.append(item.item(status))

    def _response(self, status: str, **more: Any) -> dict[str, Any]:
        empty = {"completed_at": None, "error": None, "incomplete_details": None, "usage": None}
        return {**self._opening, "status": status, "output": list(self._ended), **empty, **more}


def _usage(choices: Sequence[Choice], endings: Sequence[Ending]) -> dict[str, Any]:
    """As clients expect it: every number is there."""
    usage = responses.usage(choices, endings)
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    details = usage.get("completion_tokens_details", {})
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0, **details},
        "total_tokens": usage["total_tokens"],
    }


def written(event: Event, number: int) -> bytes:
    kind, fields = event
    body = orjson.dumps({"type": kind, "sequence_number": number, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), body)
