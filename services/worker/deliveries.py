"""Answers on their way from the engine's thread to the event loop: one call for all of a step, and no more calls ahead
of the event loop than it can take.

Tokens of steps that follow each other within milliseconds go together: each message costs this process, the streamer
and the client more than a token does, and 64 streams of a small model on a GPU would make 60 000 of them a second.
First tokens and ends don't wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from services.worker.scheduling.events import Answer, Emit

# Deliveries handed over and not yet taken. One would do; with a few the thread needn't wait for a busy event loop.
HANDED_OVER = 4
# Seconds after a delivery in which a GPU's tokens wait for those of the next step. No reader sees so short a time.
TOGETHER = 0.004


class Deliveries:
    def __init__(
        self, deliver: Callable[[list[Answer]], None], now: Callable[[], float], together: float = 0.0
    ) -> None:
        """`deliver` is called in the engine's thread; after each call `taken` must be called, in any thread.
        `together`: seconds after a delivery in which tokens wait for those of the next step."""
        self._deliver = deliver
        self._now = now
        self._together = together
        self._sent_at = -together
        self._urgent = False
        self._room = threading.Semaphore(HANDED_OVER)
        self._answers: list[Answer] = []
        self._closed = False

    def add(self, answer: Answer) -> None:
        self._answers.append(answer)
        if not isinstance(answer, Emit) or not answer.tokens.seq:
            self._urgent = True

    def send(self, more_soon: bool = False) -> None:
        """All answers added, in one call, as soon as there is room for it. `more_soon`: the next step has a row or a
        draft of each sequence, and no prompts; if its tokens can come within milliseconds, these wait for them."""
        if not self._answers:
            return
        now = self._now()
        if more_soon and not self._urgent and now - self._sent_at < self._together:
            return
        self._sent_at, self._urgent = now, False
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
