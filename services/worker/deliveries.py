"""Answers on their way from the engine's thread to the event loop: one call for all of a step, and no more calls ahead
of the event loop than it can take."""

from __future__ import annotations

import threading
from collections.abc import Callable

from services.worker.scheduling.events import Answer

# Deliveries handed over and not yet taken. One would do; with a few the thread needn't wait for a busy event loop.
HANDED_OVER = 4


class Deliveries:
    def __init__(self, deliver: Callable[[list[Answer]], None]) -> None:
        """`deliver` is called in the engine's thread; after each call `taken` must be called, in any thread."""
        self._deliver = deliver
        self._room = threading.Semaphore(HANDED_OVER)
        self._answers: list[Answer] = []
        self._closed = False

    def add(self, answer: Answer) -> None:
        self._answers.append(answer)

    def send(self) -> None:
        """All answers added, in one call, as soon as there is room for it."""
        if not self._answers:
            return
        while not self._room.acquire(timeout=0.1):
            if self._closed:
                return
        answers, self._answers = self._answers, []
        self._deliver(answers)

    def taken(self) -> None:
        """A delivery has been dealt with: there is room for another one."""
        self._room.release()

    def close(self) -> None:
        """Nobody takes any more: `send` no longer waits."""
        self._closed = True
