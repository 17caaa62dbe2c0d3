"""Which processor a thread runs on, and staying awake on it for something that is about to come."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable

NOT_KNOWN = -1
# Who gave way for so many seconds wasn't alone on his processor, and doesn't stay awake for so many.
TAKEN, BACK_OFF = 1e-3, 0.05


# The standard library doesn't say it before Python 3.13.
def _asking() -> Callable[[], int]:
    try:
        return ctypes.CDLL(None).sched_getcpu
    except (AttributeError, OSError):
        return lambda: NOT_KNOWN


# Of the calling thread, at this moment; NOT_KNOWN on systems that don't tell.
current = _asking()


def _allowed() -> set[int]:
    """Of the calling thread; none where the system doesn't tell."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


# Of the process, as it began.
_ALLOWED = _allowed()


def anywhere() -> None:
    """The calling thread may run wherever its process may. One that keeps off some processors has started it, perhaps,
    and what that one may do a thread takes over."""
    # Not ours to choose, in a sandbox or when they were taken away meanwhile: then it goes where it may.
    with contextlib.suppress(OSError):
        if _ALLOWED:
            os.sched_setaffinity(0, _ALLOWED)


class Elsewhere:
    """Keeps the calling thread off processors where others are at work, as long as there are more."""

    def __init__(self) -> None:
        self._allowed = _allowed()
        self._avoided: set[int] = set()

    def avoid(self, processors: set[int]) -> None:
        processors = processors & self._allowed
        if processors != self._avoided and processors != self._allowed:
            # As above.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._allowed - processors)
                self._avoided = processors


class Vigil:
    """Staying awake as long as nobody else wants the processor: who is given it keeps it for milliseconds, where one
    who slept would be woken before that."""

    def __init__(self) -> None:
        self._not_before = 0.0

    def is_possible(self) -> bool:
        return time.monotonic() >= self._not_before

    def give_way(self, now: float) -> bool:
        """Whether to look once more, or to go to sleep; it is `now`."""
        if now < self._not_before:
            return False
        os.sched_yield()
        after = time.monotonic()
        if after - now < TAKEN:
            return True
        self._not_before = after + BACK_OFF
        return False
