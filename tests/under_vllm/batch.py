"""vLLM's batch as a drafter sees it: rows that change their requests, with the truth of who is where.

Modelled on vLLM 0.32's InputBatch: a request takes the lowest free row; after a step's removals the last rows fill the
gaps; a request that isn't scheduled in a step leaves its row and comes back later with all of its tokens; what a row
held before stays in the array behind the new request's tokens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Request:
    number: int
    tokens: list[int]
    prompt_tokens: int
    left: int
    # Steps until it comes back; and steps that its prompt still takes.
    away: int = 0
    prefill: int = 0


@dataclass
class Batch:
    """`step` gives what propose is called with. Few tokens and few prompts, so that texts are alike."""

    seed: int
    rows: int = 12
    longest: int = 96
    alphabet: int = 3
    running: list[Request | None] = field(default_factory=list)
    away: list[Request] = field(default_factory=list)
    started: int = 0
    last: Request | None = None

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.tokens = np.zeros((self.rows, self.longest), np.int32)
        self.lengths = np.zeros(self.rows, np.int64)
        self.prompts = [self._words(length) for length in (1, 2, 2, 5, 5, 9, 9, 9)]

    def _words(self, count: int) -> list[int]:
        return [self.chance.randrange(self.alphabet) for _ in range(count)]

    def step(self) -> list[list[int]]:
        """What was sampled for each row; `lengths` and `tokens` are up to date."""
        self._leave()
        self._come()
        self._condense()
        if self.chance.random() < 0.2:
            self.chance.shuffle(self.running)
        sampled = []
        for row, request in enumerate(self.running):
            assert request is not None
            new = self._sampled(request)
            request.tokens += new
            request.left -= len(new)
            self.tokens[row, : len(request.tokens)] = request.tokens
            self.lengths[row] = len(request.tokens)
            sampled.append(new)
        return sampled

    def rows_of(self, sampled: list[list[int]]) -> list[tuple[Request, list[int]]]:
        return [(each, new) for each, new in zip(self.running, sampled, strict=True) if each is not None]

    def _sampled(self, request: Request) -> list[int]:
        if request.prefill:
            request.prefill -= 1
            return []
        room = min(request.left, 5)
        # Requests of one prompt often go on alike, as at temperature 0.
        alike = [(7 * len(request.tokens) + at) % self.alphabet for at in range(self.chance.randint(1, room))]
        return alike if self.chance.random() < 0.7 else self._words(len(alike))

    def _leave(self) -> None:
        for row, request in enumerate(self.running):
            assert request is not None
            if request.left <= 0 or self.chance.random() < 0.02:
                self.last = request
                self.running[row] = None
            elif self.chance.random() < 0.05:
                request.away = self.chance.choice((1, 1, 4))
                # Preempted: its tokens are computed again.
                request.prefill = self.chance.choice((0, 0, 2))
                self.away.append(request)
                self.running[row] = None

    def _come(self) -> None:
        for request in list(self.away):
            request.away -= 1
            if request.away < 0 and self._has_room():
                self.away.remove(request)
                self._place(request)
        while self._has_room() and self.chance.random() < 0.5:
            prompt = list(self.chance.choice(self.prompts))
            if self.last is not None and self.chance.random() < 0.2:
                # The next turn of a conversation.
                prompt = (self.last.tokens + prompt)[: self.longest - 45]
            for _ in range(self.chance.choice((1, 1, 3))):
                if self._has_room():
                    prefill = self.chance.choice((0, 0, 0, 1, 3))
                    self.started += 1
                    left = self.chance.randint(1, 40)
                    self._place(Request(self.started, list(prompt), len(prompt), left, prefill=prefill))

    def _has_room(self) -> bool:
        return len([each for each in self.running if each is not None]) < self.rows

    def _place(self, request: Request) -> None:
        if None in self.running:
            self.running[self.running.index(None)] = request
        else:
            self.running.append(request)

    def _condense(self) -> None:
        while None in self.running:
            last = self.running.pop()
            if last is not None:
                self.running[self.running.index(None)] = last
