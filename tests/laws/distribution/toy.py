"""A model whose next logits are a fixed function of the last two tokens, and what sampling from it should give:
probabilities of whole blocks of tokens, by enumeration in float64 and without any of the code under test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kernels.verify.questions import Rule

# Every text begins so: what is counted as the prompt, and the first context.
PROMPT = (1, 0)


@dataclass(frozen=True)
class Toy:
    vocab_size: int = 8
    seed: int = 0
    sharpness: float = 1.5
    ties: bool = False  # logits rounded to halves

    def logits(self) -> np.ndarray:
        """float32 [V, V, V]: by the token before the last, the last, and the next."""
        shape = (self.vocab_size,) * 3
        table = np.random.default_rng(self.seed).standard_normal(shape) * self.sharpness
        return (np.round(table * 2) / 2 if self.ties else table).astype(np.float32)


@dataclass(frozen=True)
class Sampling:
    """What a request asks besides its strategy: `rule`'s sampling parameters, and what changes logits by id."""

    rule: Rule
    bias: Mapping[int, float] = field(default_factory=dict)
    allowed: Sequence[int] | None = None


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def blocks(toy: Toy, sampling: Sampling, length: int) -> np.ndarray:
    """float64 [V ** length]: the probability of each block that may follow PROMPT, first token first."""
    size, table = toy.vocab_size, toy.logits()
    probs = np.ones(1)
    for place in range(length):
        # Every text of this many tokens, one a row.
        ids = np.arange(size**place)
        text = ids[:, None] // size ** np.arange(place - 1, -1, -1) % size
        context = np.concatenate([np.tile(PROMPT, (len(ids), 1)), text], 1)[:, -2:]
        scores = table[context[:, 0], context[:, 1]].astype(np.float64)
        probs = (probs[:, None] * distribution(edited(scores, text, sampling), sampling.rule)).reshape(-1)
    return probs


def edited(scores: np.ndarray, text: np.ndarray, sampling: Sampling) -> np.ndarray:
    """float64 [N, V]: penalties of what each of the N texts holds, bias, what is allowed."""
    rule, size = sampling.rule, scores.shape[1]
    counts = (text[:, :, None] == np.arange(size)).sum(1)
    seen = counts + np.isin(np.arange(size), PROMPT)
    repeated = np.where(scores > 0, scores / rule.repetition_penalty, scores * rule.repetition_penalty)
    scores = np.where(seen > 0, repeated, scores)
    scores = scores - rule.frequency_penalty * counts - rule.presence_penalty * (counts > 0)
    for token, bias in sampling.bias.items():
        scores[:, token] += bias
    if sampling.allowed is not None:
        scores[:, [i for i in range(size) if i not in sampling.allowed]] = -math.inf
    return scores


def distribution(scores: np.ndarray, rule: Rule) -> np.ndarray:
    """float64 [N, V]: after temperature, top_k, top_p, min_p."""
    if rule.greedy:
        return np.eye(scores.shape[1])[scores.argmax(-1)]
    probs = softmax(scores / rule.temperature)
    order = np.argsort(-scores, axis=-1, kind="stable")
    sorted_probs = np.take_along_axis(probs, order, -1)
    if rule.top_k:
        sorted_probs[:, rule.top_k :] = 0
    whole = sorted_probs.sum(-1, keepdims=True)
    before = np.cumsum(sorted_probs, -1) - sorted_probs
    if rule.top_p < 1:
        sorted_probs[before >= rule.top_p * whole - 1e-12] = 0
    sorted_probs[sorted_probs < rule.min_p * sorted_probs[:, :1] * (1 - 1e-9)] = 0
    np.put_along_axis(probs, order, sorted_probs, -1)
    return probs / probs.sum(-1, keepdims=True)
