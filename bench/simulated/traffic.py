"""Requests in simulated time, for bench/simulated/simulate.py: when they come, whose they are, how long they are.

Lengths are drawn from those that were recorded (`prompt_tokens` and `completion_tokens` of answers, one a line), so
that they have their spread and belong together. Beginnings that are shared are popular by rank.
"""

from __future__ import annotations

import json
import random
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from services.streamer.choice.routing import key_of

PAGE = 32
CALLERS = 16
# Pages of a shared beginning: none, a system prompt, a long one, a document.
SHARED = (0, 4, 16, 64)
# Every eighth question of Spec-Bench (first turns), answered by SmolLM2-135M-Instruct with max_tokens 512.
RECORDED = Path(__file__).parent / "recorded_lengths.jsonl"


class Lengths(NamedTuple):
    prompt: int
    answer: int


@dataclass(slots=True, eq=False)
class Request:
    arrived: float
    caller: int
    # The shared beginning, its pages, and pages of its own behind it.
    group: int
    shared: int
    own: int
    key: int | None
    tokens: int
    streamer: int = 0
    worker: int = -1
    # When its answer ends, as far as is known; changed by what happens to it.
    ends: float = 0.0


def recorded(path: Path = RECORDED) -> list[Lengths]:
    """Also reads a server's log of requests as JSON, which calls them `prompt_tokens` and `tokens`."""
    lines = (json.loads(line) for line in path.read_text().splitlines() if line.strip())
    found = [
        Lengths(int(line["prompt_tokens"]), int(line.get("completion_tokens", line.get("tokens", 0)))) for line in lines
    ]
    kept = [each for each in found if each.prompt > 0 and each.answer > 0]
    if not kept:
        raise ValueError(f"{path} has no lengths of answers")
    return kept


class Traffic:
    """Requests of `groups` shared beginnings, each with text of its own behind it."""

    def __init__(self, rate: float, groups: int, seed: int, lengths: Sequence[Lengths]) -> None:
        self._draw = random.Random(seed)
        self._rate = rate
        self._lengths = lengths
        self._pages = [self._draw.choice(SHARED) for _ in range(groups)]
        self._upto = list(accumulate(1 / (1 + rank) for rank in range(groups)))
        self._keys = [
            key_of([number, *range(1, pages * PAGE)], PAGE) if pages else None
            for number, pages in enumerate(self._pages)
        ]

    def __iter__(self) -> Iterator[Request]:
        draw, lengths, upto = self._draw, self._lengths, self._upto
        now, whole = 0.0, upto[-1]
        while True:
            now += draw.expovariate(self._rate)
            group = bisect(upto, draw.random() * whole)
            prompt, answer = lengths[int(draw.random() * len(lengths))]
            pages, own = self._pages[group], prompt // PAGE
            key = self._keys[group] or (draw.getrandbits(64) if own else None)
            yield Request(now, int(draw.random() * CALLERS), group, pages, own, key, answer)


def mean_answer(lengths: Sequence[Lengths]) -> float:
    return sum(each.answer for each in lengths) / len(lengths)
