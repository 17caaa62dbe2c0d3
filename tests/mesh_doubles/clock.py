"""Clocks for tests: a FakeClock is moved by hand, a SteppedClock moves when something waits."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Any

from mesh.clock import Timer


class SteppedClock:
    """For one thread without an event loop: `sleep` moves it. Calling it returns the time."""

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class _FakeTimer:
    __slots__ = ("args", "callback", "cancelled", "when")

    def __init__(self, when: float, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.when = when
        self.callback = callback
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """Stands still until `advance`; timers fire in order, and the loop settles after each."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._timers: list[tuple[float, int, _FakeTimer]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer:
        timer = _FakeTimer(self._now + max(0.0, delay), callback, args)
        heapq.heappush(self._timers, (timer.when, next(self._order), timer))
        return timer

    async def sleep(self, delay: float) -> None:
        woken = asyncio.Event()
        timer = self.call_later(delay, woken.set)
        try:
            await woken.wait()
        finally:
            timer.cancel()

    async def settle(self, rounds: int = 20) -> None:
        """Let everything that is ready to run do so; time does not pass."""
        for _ in range(rounds):
            await asyncio.sleep(0)

    def stall(self, seconds: float) -> None:
        """Time passes while nothing runs: timers that fall due are late."""
        self._now += seconds

    async def advance(self, seconds: float) -> None:
        """Move time forward, firing every timer on the way."""
        await self.advance_to(self._now + seconds, lambda: False)

    async def advance_to(self, end: float, done: Callable[[], bool]) -> None:
        """As `advance`, until then or until it is done."""
        await self.settle()
        while not done() and self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            if timer.cancelled:
                continue
            self._now = max(self._now, when)
            timer.callback(*timer.args)
            await self.settle()
        if not done():
            self._now = end
            await self.settle()
