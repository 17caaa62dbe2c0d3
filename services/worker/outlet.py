"""Sends one request's messages to its stream, as fast as credit allows.

With credit a message is sent at once. Without, messages are held and then sent as one; max_tokens bounds them. Those
with log-probabilities of the prompt are sent one by one: together they could be too large for a message. Used from the
event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from mesh.errors import MeshError
from services.api.messages import Failed, Finished, Tokens
from services.worker.scheduling import events

Answer = Tokens | Finished | Failed


class ItemWriter(Protocol):
    """The part of mesh.stream.StreamWriter that is used here."""

    def offer(self, item: Any) -> bool: ...
    async def send(self, item: Any) -> None: ...


class Outlet:
    def __init__(self, writer: ItemWriter) -> None:
        self._writer = writer
        self._held: list[Answer] = []
        self._sending = False
        self._wake = asyncio.Event()
        self._error: MeshError | None = None
        self.ended = False

    def push(self, answer: Answer) -> None:
        """Send, or hold until there is credit. Never waits, never raises."""
        self.ended = not isinstance(answer, Tokens)
        if self._sending or self._held or not self._offer(answer):
            self._held.append(answer)
            self._wake.set()
        elif self.ended:
            self._wake.set()

    def _offer(self, answer: Answer) -> bool:
        try:
            return self._writer.offer(answer)
        except MeshError as error:
            self._error = error
            return False

    async def run(self) -> None:
        """Until the end has been sent. Raises MeshError when the stream is lost."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._error is not None:
                raise self._error
            self._sending = True
            while self._held:
                await self._writer.send(self._take())
            self._sending = False
            if self.ended:
                return

    def _take(self) -> Answer:
        """The next message: all held tokens, or the end after them."""
        tokens: list[Tokens] = []
        for answer in self._held:
            if not isinstance(answer, Tokens) or answer.prompt_logprobs is not None:
                break
            tokens.append(answer)
        if not tokens:
            return self._held.pop(0)
        del self._held[: len(tokens)]
        return joined(tokens)


class Pushed(Protocol):
    """What takes a request's messages: an outlet, or a loan of pages."""

    def push(self, answer: Answer) -> None: ...


def push_all(outlets: Mapping[int, Pushed], answers: list[events.Answer]) -> None:
    """What steps gave, to each request that still reads; tokens of several steps as one message."""
    waiting: dict[int, list[Tokens]] = {}
    for each in answers:
        if isinstance(each, events.Emit) and each.tokens.prompt_logprobs is None:
            waiting.setdefault(each.sequence_id, []).append(each.tokens)
            continue
        outlet, before = outlets.get(each.sequence_id), waiting.pop(each.sequence_id, [])
        if outlet is None:
            continue
        if before:
            outlet.push(joined(before))
        if isinstance(each, events.Emit):
            outlet.push(each.tokens)
        elif isinstance(each, events.Finish):
            outlet.push(each.finished)
        else:
            outlet.push(each.failed)
    for sequence_id, parts in waiting.items():
        if (outlet := outlets.get(sequence_id)) is not None:
            outlet.push(joined(parts))


def joined(parts: list[Tokens]) -> Tokens:
    """Consecutive Tokens messages as one."""
    first = parts[0]
    if len(parts) == 1:
        return first
    logprobs = None
    if first.logprobs is not None:
        logprobs = [value for part in parts for value in part.logprobs or ()]
    return Tokens(
        request_id=first.request_id,
        attempt=first.attempt,
        seq=first.seq,
        ids=[token for part in parts for token in part.ids],
        runs=[run for part in parts for run in part.runs],
        logprobs=logprobs,
        spans=[span for part in parts for span in part.spans],
    )
