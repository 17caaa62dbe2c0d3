"""Monotonic seconds and timers. Tests pass clocks of their own (tests/mesh_doubles/clock.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds that never run backwards."""
        ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Run a plain function on the event loop after `delay` seconds."""
        ...

    async def sleep(self, delay: float) -> None: ...


class SystemClock:
    """The real one, on the running event loop."""

    now = staticmethod(time.monotonic)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer:
        return asyncio.get_running_loop().call_later(delay, callback, *args)

    async def sleep(self, delay: float) -> None:
        await asyncio.sleep(delay)
