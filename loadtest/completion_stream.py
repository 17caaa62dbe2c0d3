"""Reads the events of one streamed completion into an Outcome. Knows the OpenAI chunk format, no sockets."""

from __future__ import annotations

from typing import Any

import orjson

from loadtest.http1 import BadResponse, EventReader
from loadtest.outcome import Outcome


class CompletionStream:
    """Chat and plain completions alike: text comes in `delta` or `text`, usage and speculation at the end."""

    __slots__ = ("_events", "_last", "done", "outcome")

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.done = False
        self._events = EventReader()
        self._last: dict[int, float] = {}

    def feed(self, body: bytes, now: float) -> None:
        for data in self._events.feed(body):
            if data == b"[DONE]":
                self.done = True
                continue
            try:
                chunk = orjson.loads(data)
            except orjson.JSONDecodeError:
                raise Garbage(data) from None
            if not isinstance(chunk, dict):
                raise Garbage(data)
            self._chunk(chunk, now)

    def ended(self) -> None:
        """Called at the end of the response; decides whether it was complete."""
        outcome = self.outcome
        if outcome.error:
            return
        # transformers serve ends with usage and without [DONE]; this counts as a complete response.
        if not self.done and not (outcome.finish and outcome.completion_tokens is not None):
            outcome.error, outcome.detail = "truncated", "the stream ended without [DONE]"
        elif not outcome.finish:
            outcome.error, outcome.detail = "unfinished", "[DONE] came without a finish_reason"

    def _chunk(self, chunk: dict[str, Any], now: float) -> None:
        if (error := chunk.get("error")) is not None:
            self.outcome.error = "sse_error"
            self.outcome.detail = error_text(error)
            return
        try:
            before = self.outcome.chunks
            for choice in chunk.get("choices") or ():
                self._choice(choice, now)
            if (usage := chunk.get("usage")) is not None:
                self._usage(usage, before)
            if (metrics := chunk.get("metrics")) is not None:
                self.outcome.speculation = metrics.get("speculative_decoding") or self.outcome.speculation
        except (AttributeError, TypeError, KeyError, ValueError):
            raise Garbage(orjson.dumps(chunk)) from None

    def _choice(self, choice: dict[str, Any], now: float) -> None:
        delta = choice.get("delta")
        if delta is None:
            carries = choice.get("text")
        else:
            carries = said_in(delta)
        if carries:
            index = choice.get("index", 0)
            self.outcome.arrived(self._last.get(index), now, tokens_told(choice), len(carries))
            self._last[index] = now
            if self.outcome.pieces is not None:
                self.outcome.pieces.setdefault(index, []).append(carries)
        if finish := choice.get("finish_reason"):
            self.outcome.finish = str(finish)

    def _usage(self, usage: dict[str, Any], chunks_before: int) -> None:
        outcome = self.outcome
        count = int(usage.get("completion_tokens") or 0)
        with_every_chunk = chunks_before == 0 or outcome.completion_tokens is not None
        if with_every_chunk and outcome.chunks == chunks_before + 1 and not outcome.told[-1]:
            # The increase belongs to this chunk.
            outcome.told[-1] = max(0, count - (outcome.completion_tokens or 0))
        outcome.prompt_tokens = int(usage["prompt_tokens"])
        outcome.completion_tokens = count
        details = usage.get("prompt_tokens_details") or {}
        outcome.cached_tokens = int(details.get("cached_tokens") or 0)


def said_in(delta: dict[str, Any]) -> str:
    """Content, or reasoning, or names and arguments of calls: one of them comes in a delta."""
    if text := delta.get("content") or delta.get("reasoning_content"):
        return str(text)
    called = [call.get("function") or {} for call in delta.get("tool_calls") or ()]
    return "".join(f"{each.get('name') or ''}{each.get('arguments') or ''}" for each in called)


def tokens_told(choice: dict[str, Any]) -> int:
    """The number of tokens in a chunk as reported by the server, or 0."""
    if ids := choice.get("token_ids"):
        return len(ids)
    if runs := choice.get("runs"):
        return sum(int(run["tokens"]) for run in runs)
    if logprobs := choice.get("logprobs"):
        return len(logprobs.get("content") or logprobs.get("tokens") or ())
    return 0


class Garbage(BadResponse):
    """An event that isn't a completion chunk."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data[:200].decode(errors="replace"))


def error_text(error: Any) -> str:
    """The message of an OpenAI error object, or the text sent instead."""
    if isinstance(error, dict):
        return f"{error.get('code') or error.get('type') or ''}: {error.get('message', '')}"[:300]
    return str(error)[:300]
