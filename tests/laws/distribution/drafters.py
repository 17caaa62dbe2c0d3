"""Drafters of all kinds for a batch of texts: right, wrong, biased, copying, drawing from a distribution of their
own, out of the vocabulary; chains and trees. Their randomness is their own, never that of the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.laws.distribution.toy import Toy, softmax

Generator = np.random.Generator


@dataclass
class Drafts:
    tokens: np.ndarray  # int64 [B, K]
    lengths: np.ndarray  # int64 [B]
    parents: np.ndarray  # int64 [B, K], by row of the sequence: 0 is its root
    probs: np.ndarray | None = None  # float32 [B, K, V]
    dense: np.ndarray | None = None  # bool [B, K], which of them count; the others are certain


# Contexts (the last two tokens, int64 [B, 2]) and randomness to drafts.
Drafter = Callable[[np.ndarray, Generator], Drafts]


def _chain(tokens: np.ndarray) -> Drafts:
    many, length = tokens.shape
    parents = np.tile(np.arange(length), (many, 1))
    return Drafts(tokens, np.full(many, length), parents)


def drawn(probs: np.ndarray, chance: Generator) -> np.ndarray:
    """One of each row of [N, V]."""
    sums = probs.cumsum(-1, dtype=np.float64)
    return (sums < chance.random(len(probs))[:, None] * sums[:, -1:]).sum(-1)


def _walk(context: np.ndarray, length: int, step: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
    """Tokens [B, length], each chosen from the context that those before it make."""
    before, last, found = context[:, 0], context[:, 1], []
    for place in range(length):
        token = step(np.stack([before, last], 1), place)
        found.append(token)
        before, last = last, token
    return np.stack(found, 1)


def nothing() -> Drafter:
    return lambda context, chance: _chain(np.empty((len(context), 0), np.int64))


def right(toy: Toy, length: int) -> Drafter:
    """Knows what the target thinks likeliest."""
    best = toy.logits().argmax(-1)
    return lambda context, chance: _chain(_walk(context, length, lambda at, _: best[at[:, 0], at[:, 1]]))


def wrong(toy: Toy, length: int) -> Drafter:
    """Knows what the target thinks least likely."""
    worst = toy.logits().argmin(-1)
    return lambda context, chance: _chain(_walk(context, length, lambda at, _: worst[at[:, 0], at[:, 1]]))


def copying(length: int) -> Drafter:
    """Says the last two tokens again and again."""
    return lambda context, chance: _chain(np.tile(context, (1, length))[:, :length])


def beliefs(toy: Toy, seed: int, own: float, zeros: bool = False) -> np.ndarray:
    """float32 [V, V, V]: `own` of a mind of its own, the rest the target's; 0: exactly the target's softmax."""
    other = Toy(toy.vocab_size, 1000 + seed, toy.sharpness).logits()
    probs = softmax((toy.logits() * (1 - own) + other * own).astype(np.float64))
    if zeros:
        probs[probs < 0.06] = 0
    return (probs / probs.sum(-1, keepdims=True)).astype(np.float32)


def biased(toy: Toy, length: int, seed: int = 1) -> Drafter:
    """Draws from beliefs of its own, and gives what it drew as certain."""
    belief = beliefs(toy, seed, 0.5)
    return lambda context, chance: _chain(
        _walk(context, length, lambda at, _: drawn(belief[at[:, 0], at[:, 1]], chance))
    )


def drawing(toy: Toy, length: int, seed: int = 2, own: float = 0.5, zeros: bool = False, dense: float = 1.0) -> Drafter:
    """Draws from beliefs of its own and says them; of each token with a chance of `dense`, else it is certain."""
    belief = beliefs(toy, seed, own, zeros)

    def draft(context: np.ndarray, chance: Generator) -> Drafts:
        said: list[np.ndarray] = []

        def step(at: np.ndarray, _: int) -> np.ndarray:
            said.append(belief[at[:, 0], at[:, 1]])
            return drawn(said[-1], chance)

        drafts = _chain(_walk(context, length, step))
        drafts.probs = np.stack(said, 1)
        drafts.dense = chance.random(drafts.tokens.shape) < dense
        return drafts

    return draft


def strange(drafter: Drafter, share: float = 0.3) -> Drafter:
    """Some tokens are ids that no vocabulary has."""

    def draft(context: np.ndarray, chance: Generator) -> Drafts:
        drafts = drafter(context, chance)
        ids = chance.choice([-1, -2, -(2**31), 2**31 - 1, 1000], drafts.tokens.shape)
        drafts.tokens = np.where(chance.random(drafts.tokens.shape) < share, ids, drafts.tokens)
        return drafts

    return draft


def stopping(drafter: Drafter) -> Drafter:
    """Drafts of every length, 0 too; which one depends on the text and on chance, not on what is drawn."""

    def draft(context: np.ndarray, chance: Generator) -> Drafts:
        drafts = drafter(context, chance)
        most = drafts.tokens.shape[1]
        drafts.lengths = (context.sum(1) + chance.integers(0, 2, len(context))) % (most + 1)
        return drafts

    return draft


def tree(toy: Toy, seed: int = 3, own: float = 0.4) -> Drafter:
    """Three guesses for the first place, two for what follows the first of them, one behind the second.

    root ─ a ─ d          rows   0  1 2 3  4 5 6
         ├ b ─ f          parents   0 0 0  1 1 2
         └ c   (a ─ e)
    """
    parents = np.array([0, 0, 0, 1, 1, 2])
    belief = beliefs(toy, seed, own).astype(np.float64)

    def draft(context: np.ndarray, chance: Generator) -> Drafts:
        def likely(at: np.ndarray, count: int) -> np.ndarray:
            noisy = np.log(belief[at[:, 0], at[:, 1]]) + chance.gumbel(size=(len(at), toy.vocab_size)) * 0.5
            return np.argsort(-noisy, axis=-1)[:, :count]

        first = likely(context, 3)
        behind_a = likely(np.stack([context[:, 1], first[:, 0]], 1), 2)
        behind_b = likely(np.stack([context[:, 1], first[:, 1]], 1), 1)
        many = len(context)
        return Drafts(np.concatenate([first, behind_a, behind_b], 1), np.full(many, 6), np.tile(parents, (many, 1)))

    return draft


def either(one: Drafter, other: Drafter) -> Drafter:
    """Now a chain, now a tree: each text gets one or the other, by its last token."""

    def draft(context: np.ndarray, chance: Generator) -> Drafts:
        first, second = one(context, chance), other(context, chance)
        most = max(first.tokens.shape[1], second.tokens.shape[1])
        picked = (context[:, 1] % 2 == 0)[:, None]

        def wide(values: np.ndarray) -> np.ndarray:
            return np.pad(values, ((0, 0), (0, most - values.shape[1])))

        return Drafts(
            np.where(picked, wide(first.tokens), wide(second.tokens)),
            np.where(picked[:, 0], first.lengths, second.lengths),
            np.where(picked, wide(first.parents), wide(second.parents)),
        )

    return draft
