"""The next token of one sequence, from one row of logits: the meaning of every sampling parameter.

One row at a time and in plain torch, so nothing depends on batch mates. README.md gives the order of the
steps and why. Knows no sequences, no drafts and no stop conditions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from kernels.sample.noise import block_size, contenders, gumbel, nearly

# Below this a temperature is 0: what it divides would overflow.
SMALLEST_TEMPERATURE = 1e-5
# Up to so many ids plain floats are faster than tensors.
FEW = 64


class NotFinite(Exception):
    """The logits hold NaN or +inf, or allow no token at all: nothing may be sampled from them."""


@dataclass(slots=True)
class Rule:
    """How a sequence's tokens are chosen. Defaults: the most likely one, of the logits as they are."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)
    # Ids that may not be chosen before `min_tokens` tokens were generated.
    held_back: Sequence[int] = ()
    min_tokens: int = 0
    logprobs: int = -1  # -1: none; k: of the chosen token and of the k most likely

    @property
    def greedy(self) -> bool:
        return self.temperature < SMALLEST_TEMPERATURE

    @property
    def penalised(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


@dataclass(slots=True)
class History:
    """What the penalties count: the distinct prompt ids, and how often each id was generated."""

    prompt: Sequence[int] = ()
    counts: dict[int, int] = field(default_factory=dict)
    generated: int = 0

    def add(self, token: int) -> None:
        self.counts[token] = self.counts.get(token, 0) + 1
        self.generated += 1


def choose(logits: torch.Tensor, rule: Rule, history: History, position: int) -> int:
    """The token at `position`, from its row of logits [V] (float32, left unchanged)."""
    scores = adjusted(logits, rule, history)
    top, first = lowest_argmax(scores)
    if not math.isfinite(top):
        raise NotFinite
    if rule.greedy:
        return first
    scores = _tempered(scores, top, rule.temperature)
    ids = allowed(scores, rule)
    if ids is None:
        # Whoever wins reaches the noisy score of the likeliest token.
        [least] = nearly(rule.seed, position, [first])
        ids = contenders(scores, rule.seed, position, least)
    return _noisiest(scores, ids, rule.seed, position)


def _noisiest(scores: torch.Tensor, ids: torch.Tensor, seed: int, position: int) -> int:
    """The id with the highest score + noise, the lowest such id."""
    if ids.shape[0] <= FEW:
        # Few: near values decide, unless the two best are so near that the exact ones must.
        few: list[int] = ids.tolist()
        noisy = [s + g for s, g in zip(scores[ids].tolist(), nearly(seed, position, few), strict=True)]
        best = max(noisy)
        if sum(value > best - 0.001 for value in noisy) == 1:
            return few[noisy.index(best)]
    ids = ids.sort().values
    return int(ids[lowest_argmax(scores[ids] + gumbel(seed, position, ids))[1]])


def adjusted(logits: torch.Tensor, rule: Rule, history: History) -> torch.Tensor:
    """Logits after penalties, bias and held-back ids; the same tensor where there are none."""
    holding = bool(rule.held_back) and history.generated < rule.min_tokens
    if not (rule.penalised or rule.bias or holding):
        return logits
    scores = logits.clone()
    if rule.penalised:
        _penalise(scores, rule, history)
    if rule.bias:
        ids = torch.tensor(list(rule.bias.keys()))
        scores[ids] += torch.tensor(list(rule.bias.values()), dtype=torch.float32)
    if holding:
        scores[torch.tensor(list(rule.held_back))] = -math.inf
    return scores


def _penalise(scores: torch.Tensor, rule: Rule, history: History) -> None:
    if rule.repetition_penalty != 1.0:
        seen = torch.tensor(list(history.counts.keys() | set(history.prompt)), dtype=torch.int64)
        old = scores[seen]
        scores[seen] = torch.where(old > 0, old / rule.repetition_penalty, old * rule.repetition_penalty)
    if history.counts and (rule.presence_penalty or rule.frequency_penalty):
        ids = torch.tensor(list(history.counts.keys()))
        counts = torch.tensor(list(history.counts.values()), dtype=torch.float32)
        scores[ids] -= rule.frequency_penalty * counts + rule.presence_penalty


def _tempered(scores: torch.Tensor, top: float, temperature: float) -> torch.Tensor:
    """(score - top) / temperature: at most 0, so the sums with the noise round finely."""
    inverse = 1.0 / temperature
    tempered = torch.empty_like(scores)
    block = block_size(scores.shape[0])
    for begin in range(0, scores.shape[0], block):
        end = begin + block
        torch.sub(scores[begin:end], top, out=tempered[begin:end]).mul_(inverse)
    return tempered


def allowed(scores: torch.Tensor, rule: Rule) -> torch.Tensor | None:
    """Ids left by top_k, then top_p, then min_p, likeliest first; None when all are.

    top_p is of the mass that top_k left; min_p is relative to the likeliest token.
    """
    size = scores.shape[0]
    kept: torch.Tensor | None = None
    if 0 < rule.top_k < size:
        kept = likeliest(scores, rule.top_k)
    if rule.top_p < 1.0:
        kept = _nucleus(scores, kept, rule.top_p)
    if rule.min_p > 0.0:
        floor = math.log(rule.min_p)
        if kept is None:
            return (scores >= floor).nonzero().view(-1)
        kept = kept[scores[kept] >= floor]
    return kept


def likeliest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The ids of the `count` highest scores, highest first, equal scores by id."""
    if count * 8 > scores.shape[0]:
        return torch.sort(scores, descending=True, stable=True).indices[:count]
    values, ids = scores.topk(count + 1)
    if values[count - 1] == values[count]:
        # The edge runs through equal scores: the lowest ids among all of them.
        ids = (scores >= values[count]).nonzero().view(-1)
    else:
        ids = ids[:count].sort().values
    order = torch.sort(scores[ids], descending=True, stable=True).indices[:count]
    return ids[order]


def _nucleus(scores: torch.Tensor, kept: torch.Tensor | None, top_p: float) -> torch.Tensor:
    """The fewest likeliest ids whose mass reaches top_p: never none, so top_p 0 means the likeliest one."""
    if kept is not None:
        return kept[: _reach(torch.softmax(scores[kept], 0), top_p)]
    size = scores.shape[0]
    total = torch.logsumexp(scores, 0)
    # Sorting a whole vocabulary costs forty times as much as looking at its top, which nearly always suffices.
    for count in (min(128, size), min(2048, size), size):
        kept = likeliest(scores, count)
        masses = (scores[kept] - total).exp()
        reach = _reach(masses, top_p)
        if reach < count or count == size:
            break
    return kept[:reach]


def _reach(masses: torch.Tensor, top_p: float) -> int:
    """How many masses, from the first, it takes to reach top_p."""
    sums = masses.to(torch.float64).cumsum(0)
    return min(int((sums < top_p).sum()) + 1, masses.shape[0])


def lowest_argmax(scores: torch.Tensor) -> tuple[float, int]:
    """(highest score, lowest id that has it). NaN counts as the highest, so that it is seen."""
    tops, ids = lowest_argmaxes(scores.unsqueeze(0))
    return tops[0], ids[0]


def lowest_argmaxes(logits: torch.Tensor) -> tuple[list[float], list[int]]:
    """Of every row of [R, V], any float type: highest values, and the lowest ids that have them.

    Two levels, since torch's maximum of blocks is vectorised and its arg-max isn't: the first block that
    holds the maximum, then the first place in that block. Exact, so the same in any batch.
    """
    rows, size = logits.shape
    width = 512
    whole = size - size % width
    if whole == 0:
        tops, ids = logits.float().max(-1)
        return tops.tolist(), ids.tolist()
    blocks = logits[:, :whole].float().reshape(rows, whole // width, width)
    tops, block = blocks.amax(-1).max(-1)
    inner = blocks[torch.arange(rows), block].argmax(-1)
    ids = block * width + inner
    if whole < size:
        rest, place = logits[:, whole:].float().max(-1)
        # Only a strictly higher tail wins: equal values belong to the lower id. NaN is above everything.
        higher = (rest > tops) | (rest.isnan() & ~tops.isnan())
        tops, ids = torch.where(higher, rest, tops), torch.where(higher, place + whole, ids)
    return tops.tolist(), ids.tolist()


def logprobs_of(logits: torch.Tensor, token: int, count: int) -> tuple[float, list[tuple[int, float]]]:
    """Log-probability of `token`, and the `count` likeliest (id, log-probability), under the raw logits."""
    total = float(torch.logsumexp(logits, 0))
    top: list[tuple[int, float]] = []
    if count > 0:
        ids = likeliest(logits, min(count, logits.shape[0]))
        top = [(i, v - total) for i, v in zip(ids.tolist(), logits[ids].tolist(), strict=True)]
    return float(logits[token]) - total, top
