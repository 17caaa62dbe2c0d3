"""How drafters in the worker choose the next token of a draft: the most probable one, or for rules that read
probabilities a sampled one. Where a network gives no numbers the draft of that text ends, and no other one does."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from services.api.drafter import NO_DRAFT, Draft, DraftRequest


class DraftChain:
    """A draft being made."""

    def __init__(self, request: DraftRequest) -> None:
        self.request = request
        self.tokens: list[int] = []
        self.confidence: list[float] = []
        self.chance = 1.0  # that all of them are accepted
        self.ended = False  # no token can be chosen
        self._probs: list[torch.Tensor] = []
        self._generator: torch.Generator | None = None

    @property
    def full(self) -> bool:
        """Whether one more token isn't wanted, or not worth its pass."""
        return self.ended or len(self.tokens) >= self.request.budget or self.chance < self.request.floor

    def sample(self, logits: torch.Tensor, ids: torch.Tensor | None, vocab_size: int) -> int:
        """A place of `logits`, drawn with the request's temperature. Keeps the distribution over all tokens."""
        drawn = (logits / self.request.temperature).softmax(-1)
        weights = drawn.cpu()
        if math.isnan(float(weights.sum())):
            self.ended = True
            return 0
        place = int(torch.multinomial(weights, 1, generator=self._noise()))
        self._probs.append(drawn if ids is None else drawn.new_zeros(vocab_size).index_add_(0, ids, drawn))
        return place

    def _noise(self) -> torch.Generator:
        """A function of the seed and the text's length, apart from the noise of verification."""
        if self._generator is None:
            mixed = (self.request.seed * 0x9E3779B97F4A7C15 + len(self.request.text.tokens)) & (2**63 - 1)
            self._generator = torch.Generator().manual_seed(mixed)
        return self._generator

    def add(self, token: int, sure: float) -> None:
        self.ended = self.ended or math.isnan(sure)
        if self.ended:
            return
        self.tokens.append(token)
        self.confidence.append(sure)
        self.chance *= sure

    def take(self, tokens: Sequence[tuple[int, float]]) -> None:
        """As many of the first ones as are worth it."""
        for token, sure in tokens:
            if self.full:
                break
            self.add(token, sure)

    def made(self, source: str) -> Draft:
        if not self.tokens:
            return NO_DRAFT
        probs = torch.stack(self._probs) if self._probs else None
        return Draft(self.tokens, source, confidence=self.confidence, probs=probs)


def choose(chains: Sequence[DraftChain], logits: torch.Tensor, ids: torch.Tensor | None, vocab_size: int) -> None:
    """Add the next token to each chain; `logits` [chains, the drafter's vocabulary], `ids` the target's ids of it."""
    logits = logits.float()
    probs = logits.softmax(-1)
    best, most_probable = probs.max(-1)
    places, confidence = most_probable.tolist(), best.tolist()
    for index, chain in enumerate(chains):
        if chain.request.temperature > 0 and not chain.ended:
            places[index] = place = chain.sample(logits[index], ids, vocab_size)
            confidence[index] = float(probs[index, place])
    tokens = places if ids is None else ids[torch.tensor(places, device=ids.device)].tolist()
    for chain, token, sure in zip(chains, tokens, confidence, strict=True):
        chain.add(token, sure)


def fetched(passes: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[list[tuple[int, float]]]:
    """What `likeliest` gave in some passes, with one wait for the device. The rows of a pass are the first ones of the
    pass before it; one list for each row of the first pass."""
    words = torch.cat([word for tokens, sure in passes for word in (tokens.int(), sure.view(torch.int32))]).cpu()
    rows: list[list[tuple[int, float]]] = [[] for _ in passes[0][0]]
    counts = [count for tokens, _ in passes for count in (len(tokens),) * 2]
    parts = iter(torch.split(words, counts))
    for tokens, sure in zip(parts, parts, strict=True):
        for row, pair in zip(rows, zip(tokens.tolist(), sure.view(torch.float32).tolist(), strict=True), strict=False):
            row.append(pair)
    return rows
