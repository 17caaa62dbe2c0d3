"""What a mesh takes and gives, from outside: tokens per second by streams, first tokens, memory.

Prompts are random token ids that every vocabulary has, and nothing is drafted: neither caches nor drafts help, and what
they bring depends on the texts. `specmesh capacity` and the benchmark of sizes measure with this.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specmesh.connection import Connection, in_parallel

PROMPT, SHORT_PROMPT = 400, 16  # tokens
STREAMS = (1, 4, 16, 64, 256)
IDS = range(10, 250)
LEAST_TOKENS, MOST_TOKENS = 8, 512
WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Limits:
    max_sequences: int
    max_context: int
    kv_tokens: int  # that fit into the KV pages


@dataclass(frozen=True, slots=True)
class Measured:
    limits: Limits
    at_rest_mb: float
    first_token_s: float  # of PROMPT tokens
    tokens_per_s: Mapping[int, float]  # of all streams together, by their number
    memory_mb: Mapping[int, float]


class Target:
    """The mesh that is measured. `memory` tells how many MB it takes now."""

    def __init__(self, connection: Connection, model: str, memory: Callable[[], float]) -> None:
        self._connection, self._model, self.memory = connection, model, memory

    def speed(self, streams: int, tokens: int) -> float:
        """Tokens per second of all streams together, their short prompts included."""

        async def one(_: int) -> None:
            await self._ask(SHORT_PROMPT, tokens)

        began = time.perf_counter()
        self._connection.run(in_parallel(range(streams), one, streams))
        return streams * tokens / (time.perf_counter() - began)

    def first_token(self, rounds: int) -> float:
        """Seconds, the median of `rounds` after a first one."""
        taken = [self._connection.run(self._ask(PROMPT, 1)) for _ in range(rounds + 1)]
        return statistics.median(taken[1:])

    async def _ask(self, length: int, tokens: int) -> float:
        body = {
            "model": self._model, "prompt": random.choices(IDS, k=length), "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "speculation": {"method": "naive", "learn": False},
        }  # fmt: skip
        began = time.perf_counter()
        answer = await self._connection.post("/v1/completions", body)
        assert answer["usage"]["completion_tokens"] == tokens
        return time.perf_counter() - began


def measured(
    target: Target, limits: Limits, seconds: float, rounds: int = 3, tell: Callable[[str], object] = print
) -> Measured:
    """About `seconds` for each number of streams."""
    at_rest = target.memory()
    target.speed(1, WARM_UP_TOKENS)
    first = target.first_token(rounds)
    rate = target.speed(1, WARM_UP_TOKENS)
    speeds, memory = {}, {}
    longest = min(MOST_TOKENS, limits.max_context - SHORT_PROMPT)
    for streams in (each for each in STREAMS if each <= limits.max_sequences):
        tell(f"{streams} at a time")
        # More streams are at least as fast as fewer: a round takes no longer than asked for.
        rate = target.speed(streams, min(longest, max(LEAST_TOKENS, int(rate * seconds / streams))))
        speeds[streams], memory[streams] = rate, target.memory()
    return Measured(limits, at_rest, first, speeds, memory)
