"""Divides the event loop between requests: what takes long is done in slices, and each turn of the loop has room for a
few of them. In between everything else has its turn, also what tells the mesh that this process lives.

    turn │ slice of a │ slice of b │ sockets, timers │ slice of c │ …        first come, first served

Work is counted, not timed: one unit is a log-probability written with its token, 0.5 to 3 µs.
"""

from __future__ import annotations

import asyncio
from collections import deque

A_TURN = 1000  # units in a turn of the loop; the slice that reaches it is the last
A_SLICE = 500  # units in a slice, about
# Token ids that are hashed, copied or written for one unit.
NUMBERS_OF_A_UNIT = 50


class Turns:
    """One in a process."""

    def __init__(self, most: int = A_TURN) -> None:
        self._most = most
        self._used = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    async def take(self, work: int) -> None:
        """Returns when a slice of `work` units may be done, at once if this turn has room."""
        work = max(1, work)
        loop = asyncio.get_running_loop()
        if self._waiting or self._used >= self._most:
            # `_next` is on its way.
            future = loop.create_future()
            self._waiting.append((future, work))
            await future
            return
        if self._used == 0:
            loop.call_soon(self._next)
        self._used += work

    def _next(self) -> None:
        """A turn begins: those who waited go first."""
        self._used = 0
        while self._waiting and self._used < self._most:
            future, work = self._waiting.popleft()
            if not future.done():  # else its request was cancelled
                future.set_result(None)
                self._used += work
        if self._used:
            asyncio.get_running_loop().call_soon(self._next)
