"""The metrics of the tokenizer, and its progress: running work, and when work last ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram

if TYPE_CHECKING:
    from mesh.clock import Clock

_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class TokenizerMetrics:
    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._clock = clock
        self._seconds = Histogram(
            "specmesh:tokenizer_seconds",
            "Time to handle a request, in seconds, by kind of work: encode, encode_words, check_grammar or decode",
            ["work"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._refusals = Counter(
            "specmesh:tokenizer_refused", "Requests refused, by reason", ["reason"], registry=registry
        )
        self.running = 0
        self.tokens = 0
        self._last_progress = clock.now()
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def work(self, name: str) -> Iterator[None]:
        started = self._clock.now()
        if self.running == 0:
            # Progress is measured from here: idle time doesn't count.
            self._last_progress = started
        self.running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.running -= 1
            self._last_progress = self._clock.now()
            self._seconds.labels(name).observe(self._last_progress - started)
            if self.running == 0:
                self._idle.set()

    @contextmanager
    def elsewhere(self, name: str) -> Iterator[None]:
        """Work that another process does: waiting for it says nothing about this one's progress."""
        started = self._clock.now()
        try:
            yield
        finally:
            self._seconds.labels(name).observe(self._clock.now() - started)

    def prompt_tokens(self, count: int) -> None:
        self.tokens += count

    def refused(self, reason: str) -> None:
        self._refusals.labels(reason).inc()

    def progress_age(self) -> float:
        """Seconds since work last ended, while work is running; 0 when idle."""
        return self._clock.now() - self._last_progress if self.running else 0.0

    async def idle(self, timeout: float) -> None:
        """Returns when nothing runs, or after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            pass
