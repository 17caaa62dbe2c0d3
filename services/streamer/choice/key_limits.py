"""Limits of each API key: requests and tokens a minute. Each is a bucket that holds a minute's worth and fills evenly.

A request takes one from the first when it is admitted. What tokens it has used, of its prompt too, is known at its end:
they are taken then, the second bucket may owe some, and requests wait until it has paid. Knows no HTTP and no mesh.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from services.streamer.openai.errors import ApiError

MINUTE = 60.0  # s
REQUESTS, TOKENS = "requests", "tokens"


class Bucket:
    __slots__ = ("_at", "_level", "_limit")

    def __init__(self, limit: int, now: float) -> None:
        self._limit = limit
        self._level = float(limit)
        self._at = now

    def wait(self, now: float) -> float:
        """Seconds until it has one."""
        self._level = min(self._limit, self._level + (now - self._at) * self._limit / MINUTE)
        self._at = now
        return max(0.0, (1.0 - self._level) * MINUTE / self._limit)

    def take(self, count: int) -> None:
        self._level -= count


class KeyLimits:
    """`requests` and `tokens` a minute; 0: no limit. Callers without a key are one."""

    def __init__(self, requests: int, tokens: int, clock: Callable[[], float]) -> None:
        self._limits = {name: limit for name, limit in ((REQUESTS, requests), (TOKENS, tokens)) if limit}
        self._clock = clock
        self._buckets: dict[tuple[bytes, str], Bucket] = {}

    def exceeded(self, key: bytes) -> tuple[str, ApiError] | None:
        """The limit that keeps this request out, and what its client is told; None: it was counted."""
        now = self._clock()
        for name, limit in self._limits.items():
            if wait := self._bucket(key, name).wait(now):
                message = f"This API key has used its {limit} {name} of a minute (key_{name}_per_minute)"
                return name, ApiError(429, message, code="rate_limit_exceeded", retry_after=math.ceil(wait))
        if REQUESTS in self._limits:
            self._bucket(key, REQUESTS).take(1)
        return None

    def spend(self, key: bytes, tokens: int) -> None:
        if TOKENS in self._limits:
            bucket = self._bucket(key, TOKENS)
            bucket.wait(self._clock())
            bucket.take(tokens)

    def _bucket(self, key: bytes, name: str) -> Bucket:
        if (found := self._buckets.get((key, name))) is None:
            found = self._buckets[key, name] = Bucket(self._limits[name], self._clock())
        return found
