"""Memory of answers that are kept until they are whole. Those that are streamed are written as they come.

Each answer has a little for itself, so small ones go on whatever large ones hold. Knows sizes, not what is kept.
"""

from __future__ import annotations

import contextlib
import ctypes

from services.streamer.choice.admission import too_many
from services.streamer.openai.errors import ApiError

# Bytes of each answer that aren't counted.
FREE = 65536
# An answer as large as this leaves holes in the heap, which then are given back.
LEAVES_HOLES = 16 << 20


class AnswerMemory:
    """One in a process. `held`: bytes of all answers, but for what each has free."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self.held = 0

    def answer(self) -> AnswerPart:
        return AnswerPart(self)

    def take(self, more: int, own: int) -> None:
        """`own`: what the answer that takes it holds then."""
        if own > self._budget:
            message = "The answer is larger than answer_memory_mb; ask for less, or for a stream"
            raise ApiError(413, message, code="answer_too_large")
        if self.held + more > self._budget:
            raise too_many("The answers of the requests in progress fill their memory; try again, or ask for a stream")
        self.held += more


class AnswerPart:
    """Of one request. To be closed when its answer is written."""

    def __init__(self, memory: AnswerMemory) -> None:
        self._memory = memory
        self._size = 0

    def grow(self, more: int) -> None:
        """Raises ApiError where there is no room."""
        counted = max(0, self._size - FREE)
        now = max(0, self._size + more - FREE)
        if now > counted:
            self._memory.take(now - counted, now)
        self._size += more

    def close(self) -> None:
        self._memory.held -= max(0, self._size - FREE)
        large, self._size = self._size > LEAVES_HOLES, 0
        if large:
            # glibc's alone.
            with contextlib.suppress(AttributeError):
                ctypes.CDLL(None).malloc_trim(0)
