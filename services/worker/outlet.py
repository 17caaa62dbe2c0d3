"""Sends one request's messages to its stream, as fast as credit allows.

With credit a message is sent at once. Without, messages are held and then sent as one; max_tokens bounds them. So are
those of several steps that have ended before the event loop came to them. Used from the event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from mesh.errors import MeshError
from services.api.joining import Answer, next_of
from services.api.messages import Tokens
from services.worker.scheduling import events


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
                await self._writer.send(next_of(self._held))
            self._sending = False
            if self.ended:
                return


class Pushed(Protocol):
    """What takes a request's messages: an outlet, or a loan of pages."""

    def push(self, answer: Answer) -> None: ...


def push_all(outlets: Mapping[int, Pushed], steps: list[list[events.Answer]]) -> None:
    """What these steps gave, to each request that still reads. Of several steps the tokens of each leave as one
    message."""
    if len(steps) == 1:
        for answer in steps[0]:
            if (outlet := outlets.get(answer.sequence_id)) is not None:
                outlet.push(answer.message)
        return
    held: dict[int, list[Answer]] = {}
    for answers in steps:
        for answer in answers:
            held.setdefault(answer.sequence_id, []).append(answer.message)
    for sequence_id, messages in held.items():
        while messages and (outlet := outlets.get(sequence_id)) is not None:
            outlet.push(next_of(messages))
