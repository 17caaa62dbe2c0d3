"""Faults of `block`, and small cases whose answer each of them changes.

The rule of kernels/verify/README.md in plain floats once more, with faults that can be switched on, at least one for
each quantity that the rule computes. Cases are drawn from seeds, and kept if a fault changes their accepted count or
their tokens. An implementation with that fault can't give the right answers to all of them. Trees, which `block`
verifies by `rejection`, have faults of their own. Knows no implementation.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kernels.verify.questions import BLOCK, Asked, Rule
from tests.kernels.verify.plainly import Judge, Opinion

# Tokens and rows.
Spoken = tuple[list[int], list[int]]

# Fault -> what is wrong with it on.
FAULTS = {
    # joint(i) = min(1, joint(i - 1) * p / q)
    "no cap": "joint isn't limited to 1",
    "no history": "joint is that of the last token alone",
    "no draft probability": "joint isn't divided by q",
    "zero target counts": "joint is 1, not 0, where p and q are 0",
    "zero draft refuses": "joint is 0, not 1, where q is 0",
    # rest(i)
    "rest unweighted": "sum of max(p - q, 0), without joint",
    "rest with another joint": "in rest, joint is that of the last token alone",
    "rest with signs": "sum of joint * p - q, negative parts included",
    "certain rest unweighted": "1 - p, without joint",
    "certain rest of the token": "joint * p in place of joint * (1 - p)",
    # h(i)
    "threshold is joint": "h = joint before the end, too",
    "threshold undivided": "h = rest before the end",
    "threshold of the end": "h = joint of the token before, at the end",
    "first refusal ends": "the first i with u >= h ends the walk",
    "another random number": "u of the token before",
    # The next token
    "weight 1": "the residual is that of rejection",
    "weight of the end": "weight is joint of the draft's last token",
    "no residual": "the next token is the row's own after a draft probability",
    "refused again": "a certain token that was refused can be chosen",
    # Trees
    "tree as chain": "rows in order, whatever their parents",
    "twin counts": "a refused token's mass counts again for its sibling with the same id",
    "mass stays": "a refused token's mass stays in the total",
    "sibling again": "refused siblings can be chosen",
}  # fmt: skip
# Cases of each fault; more than enough seeds for the rarest of them.
ENOUGH, SEEDS = 6, 4000
VOCABULARIES = (8, 21, 64)
TEMPERATURES = (0.6, 1.0, 1.7)


class BlockJudge(Judge):
    """The rule of `block` for one question; `answer_with` switches a fault on."""

    def __init__(self, logits: torch.Tensor, asked: Asked) -> None:
        super().__init__(logits, asked)
        self.fault = ""
        # Every fault asks the same rows.
        self._opinions: dict[int, Opinion] = {}

    def answer_with(self, fault: str) -> Spoken:
        self.fault = fault
        return self.judge()

    def opinion(self, row: int) -> Opinion:
        if row not in self._opinions:
            self._opinions[row] = super().opinion(row)
        return self._opinions[row]

    def block(self) -> Spoken:
        length = len(self.draft) - 1
        joint, stands = [1.0], 0
        for i in range(1, length + 1):
            joint.append(self.joint(i, joint[-1]))
            if self.u(i - (self.fault == "another random number")) < self.threshold(i, joint):
                stands = i
            elif self.fault == "first refusal ends":
                break
        if stands == length:
            return self.answer(stands, self.opinion(stands).own)
        weight = {"weight 1": 1.0, "weight of the end": joint[-1]}.get(self.fault, joint[stands])
        return self.answer(stands, self.next_token(stands, weight))

    def ratio(self, i: int) -> tuple[float, float]:
        """p and q of draft token i."""
        q = self.draft_probs(i)
        return self.opinion(i - 1).probs[self.draft[i]], 1.0 if q is None else q[self.draft[i]]

    def joint(self, i: int, before: float) -> float:
        p, q = self.ratio(i)
        if p == 0 and self.fault != "zero target counts":
            return 0.0
        if q == 0:
            return float(self.fault != "zero draft refuses")
        before = 1.0 if self.fault == "no history" else before
        found = before * p if self.fault == "no draft probability" else before * p / q
        return found if self.fault == "no cap" else min(1.0, found)

    def threshold(self, i: int, joint: list[float]) -> float:
        here = joint[i]
        if i == len(self.draft) - 1:
            return joint[i - 1] if self.fault == "threshold of the end" else here
        rest = self.rest(i, here)
        match self.fault:
            case "threshold is joint":
                return here
            case "threshold undivided":
                return rest
        return rest / (rest + 1 - here) if rest > 0 else 0.0

    def rest(self, i: int, joint: float) -> float:
        p, q = self.opinion(i).probs, self.draft_probs(i + 1)
        if q is None:
            certain = p[self.draft[i + 1]]
            factor = 1.0 if self.fault == "certain rest unweighted" else joint
            return factor * (certain if self.fault == "certain rest of the token" else 1 - certain)
        if self.fault == "rest unweighted":
            joint = 1.0
        if self.fault == "rest with another joint":
            joint = self.joint(i, 1.0)
        least = -math.inf if self.fault == "rest with signs" else 0.0
        return sum(max(joint * a - b, least) for a, b in zip(p, q, strict=True))

    def next_token(self, row: int, weight: float) -> int:
        """After draft token row + 1 was refused."""
        p, q = self.opinion(row).probs, self.draft_probs(row + 1)
        if q is None:
            refused = self.draft[row + 1] if self.fault != "refused again" else -1
            return self.sampled([0.0 if i == refused else each for i, each in enumerate(p)], row)
        left = [max(weight * a - b, 0.0) for a, b in zip(p, q, strict=True)]
        if self.fault == "no residual" or not any(left):
            return self.opinion(row).own
        return self.sampled(left, row)

    def rejection(self) -> Spoken:
        """Of a tree, whose tokens are all certain."""
        if self.fault == "tree as chain":
            return BlockJudge(self.logits, self.as_chain()).judge()
        row = 0
        while True:
            whole = self.opinion(row).probs
            left, total, refused = list(whole), 1.0, set()
            for child in self.children(row):
                token = self.draft[child]
                mine = whole[token] if self.fault == "twin counts" else left[token]
                if self.u(child) * total < mine:
                    break
                left[token], total = 0.0, total - (0.0 if self.fault == "mass stays" else mine)
                refused.add(token)
            else:
                return self.answer(row, self.sampled(whole if self.fault == "sibling again" else left, row))
            row = child

    def as_chain(self) -> Asked:
        return Asked(self.asked.rule, self.asked.position, self.asked.draft)


@dataclass(frozen=True, slots=True)
class BlockCase:
    seed: int
    logits: torch.Tensor  # [k + 1, V]
    asked: Asked
    right: Spoken
    # Those that change the answer, with the answer that they give.
    faults: dict[str, Spoken]


@functools.cache
def cases() -> list[BlockCase]:
    """The first cases of every fault that each change its answer."""
    wanted = dict.fromkeys(FAULTS, ENOUGH)
    found = []
    for seed in range(SEEDS):
        if not wanted:
            break
        logits, asked = drawn(seed)
        judge = BlockJudge(logits, asked)
        right = judge.answer_with("")
        seen = {fault: answer for fault in wanted if (answer := judge.answer_with(fault)) != right}
        if seen:
            found.append(BlockCase(seed, logits, asked, right, seen))
        wanted = {fault: left for fault, count in wanted.items() if (left := count - (fault in seen))}
    return found


def by_vocabulary() -> Iterator[tuple[int, list[BlockCase]]]:
    """One batch each."""
    for size in VOCABULARIES:
        yield size, [case for case in cases() if case.logits.shape[1] == size]


def drawn(seed: int) -> tuple[torch.Tensor, Asked]:
    """A draft of 2 to 6 tokens: a chain, with draft probabilities of all, some or none of them; or a tree."""
    chance = random.Random(seed)
    size, length = VOCABULARIES[seed % len(VOCABULARIES)], chance.randint(2, 6)
    rule = Rule(temperature=chance.choice(TEMPERATURES), seed=seed, strategy=BLOCK)
    spread = rule.temperature * chance.choice((1.0, 2.0))
    rows = [_row(chance, size, spread) for _ in range(length + 1)]
    position = chance.randrange(10_000)
    if chance.random() < 0.3:
        parents = [chance.choice((0, max(0, row - 1), row)) for row in range(length)]
        asked = Asked(rule, position, _tree_draft(chance, rows, parents), parents)
        return torch.tensor(rows), asked
    dense = chance.choice((0.0, 0.5, 1.0))
    probs = [_draft_probs(chance, row, rule.temperature) if chance.random() < dense else None for row in rows[:-1]]
    draft = [_drafted(chance, row, each) for row, each in zip(rows, probs, strict=False)]
    tensors = [None if each is None else torch.tensor(each) for each in probs]
    return torch.tensor(rows), Asked(rule, position, draft, draft_probs=tensors)


def _row(chance: random.Random, size: int, spread: float) -> list[float]:
    """Scores; some ids can't be."""
    row = [-math.inf if chance.random() < 0.1 else chance.gauss(0, spread) for _ in range(size)]
    row[chance.randrange(size)] = 2 * spread
    return row


def _draft_probs(chance: random.Random, row: list[float], temperature: float) -> list[float]:
    """Near the target's, also where that is 0."""
    wide = chance.choice((0.3, 1.5))
    scores = [(-1.0 if each == -math.inf else each / temperature) + chance.gauss(0, wide) for each in row]
    return torch.softmax(torch.tensor(scores), 0).tolist()


def _drafted(chance: random.Random, row: list[float], probs: list[float] | None) -> int:
    """From the draft probabilities, or what the target might say; and a draft probability that is 0 now and then."""
    if probs is None:
        return _likely(chance, row)
    [token] = chance.choices(range(len(probs)), probs)
    if chance.random() < (0.5 if row[token] == -math.inf else 0.1):
        probs[token] = 0.0
    return token


def _likely(chance: random.Random, row: list[float]) -> int:
    [token] = chance.choices(range(len(row)), [math.exp(1.2 * each) for each in row])
    return token


def _tree_draft(chance: random.Random, rows: list[list[float]], parents: list[int]) -> list[int]:
    """Siblings often have the same id."""
    draft: list[int] = []
    for parent in parents:
        siblings = [token for token, above in zip(draft, parents, strict=False) if above == parent]
        draft.append(chance.choice(siblings) if siblings and chance.random() < 0.3 else _likely(chance, rows[parent]))
    return draft
