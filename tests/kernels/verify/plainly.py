"""README.md once more, in plain Python floats and the words of the papers: an oracle that shares only the noise with
what it checks. It may differ where a number lies within 1e-6 of an edge, which fixed seeds avoid."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kernels.verify import questions as ask
from kernels.verify.noise import gumbel, uniform
from kernels.verify.questions import Answers, Asked


@dataclass
class Opinion:
    """One row: scores over the temperature, and the probability of every id after all filters."""

    z: list[float]
    probs: list[float]
    order: list[int]  # likeliest first
    own: int


def opinion(logits: torch.Tensor, asked: Asked, row: int, path: list[int]) -> Opinion:
    """`path`: the drafted tokens that `row` stands behind."""
    rule, x = asked.rule, logits.double().tolist()
    counts = dict(asked.seen or {})
    for token in path:
        counts[token] = counts.get(token, 0) + 1
    for token, count in counts.items():
        r = rule.repetition_penalty
        x[token] = x[token] / r if x[token] > 0 else x[token] * r
        if count:
            x[token] -= rule.frequency_penalty * count + rule.presence_penalty
    for token, bias in (asked.bias or {}).items():
        x[token] += bias
    for token in asked.forbidden[row] if asked.forbidden else ():
        x[token] = -math.inf
    if asked.allowed is not None:
        x = [value if token in set(asked.allowed) else -math.inf for token, value in enumerate(x)]
    order = sorted(range(len(x)), key=lambda i: (-x[i], i))
    if rule.greedy:
        return Opinion(x, [float(i == order[0]) for i in range(len(x))], order, order[0])
    z = [value / rule.temperature for value in x]
    weights = [math.exp(value - z[order[0]]) for value in z]
    kept = order[: rule.top_k] if rule.top_k else order
    whole, reached, members = sum(weights[i] for i in kept), 0.0, []
    for i in kept:
        if rule.top_p < 1 and members and reached >= rule.top_p * whole:
            break
        members.append(i)
        reached += weights[i]
    members = [i for i in members if weights[i] >= rule.min_p and weights[i] > 0] or order[:1]
    whole = sum(weights[i] for i in members)
    probs = [weights[i] / whole if i in members else 0.0 for i in range(len(z))]
    noise = gumbel(rule.seed, asked.position + len(path), torch.arange(len(z))).tolist()
    own = max(members, key=lambda i: (z[i] + noise[i], -i))
    return Opinion(z, probs, order, own)


class Judge:
    """A verdict on one question: (tokens, rows)."""

    def __init__(self, logits: torch.Tensor, asked: Asked) -> None:
        self.logits, self.asked = logits, asked
        self.parents = [-1, *(asked.parents or range(len(asked.draft)))]
        self.draft = [-1, *asked.draft]

    def path(self, row: int) -> list[int]:
        return [] if row == 0 else [*self.path(self.parents[row]), row]

    def opinion(self, row: int) -> Opinion:
        return opinion(self.logits[row], self.asked, row, [self.draft[each] for each in self.path(row)])

    def children(self, row: int) -> list[int]:
        found = [child for child, parent in enumerate(self.parents) if parent == row]
        return [child for child in found if 0 <= self.draft[child] < self.logits.shape[1]]

    def u(self, row: int) -> float:
        return uniform(self.asked.rule.seed, self.asked.position, row)

    def draft_probs(self, row: int) -> list[float] | None:
        given = self.asked.draft_probs[row - 1] if self.asked.draft_probs else None
        return None if given is None else given.tolist()

    def one_hot(self, row: int) -> list[float]:
        """The distribution this row's drafted token came from; a certain one came from one that is sure of it."""
        return self.draft_probs(row) or [float(i == self.draft[row]) for i in range(self.logits.shape[1])]

    def sampled(self, weights: list[float], row: int) -> int:
        """The arg-max of ln(weight) + noise."""
        noise = gumbel(self.asked.rule.seed, self.asked.position + len(self.path(row)), torch.arange(len(weights)))
        scores = [math.log(w) + g if w > 1e-9 else -math.inf for w, g in zip(weights, noise.tolist(), strict=True)]
        return max(range(len(scores)), key=lambda i: (scores[i], -i))

    def answer(self, row: int, own: int) -> tuple[list[int], list[int]]:
        path = self.path(row)
        return [*(self.draft[each] for each in path), own], [0, *path]

    def judge(self) -> tuple[list[int], list[int]]:
        rule = self.asked.rule
        branches = any(parent != row - 1 for row, parent in enumerate(self.parents))
        if rule.accept != ask.NORMAL:
            return self.unasked(rule.accept == ask.ALL)
        if rule.greedy or rule.strategy == ask.MATCH:
            return self.match()
        if rule.strategy == ask.REJECTION or (rule.strategy == ask.BLOCK and branches):
            return self.rejection()
        return self.block() if rule.strategy == ask.BLOCK else self.members()

    def unasked(self, everything: bool) -> tuple[list[int], list[int]]:
        row = 0
        while everything and (children := self.children(row)):
            row = children[0]
        return self.answer(row, self.opinion(row).own)

    def match(self) -> tuple[list[int], list[int]]:
        row = 0
        while True:
            own = self.opinion(row).own
            same = [child for child in self.children(row) if self.draft[child] == own]
            if not same:
                return self.answer(row, own)
            row = same[0]

    def rejection(self) -> tuple[list[int], list[int]]:
        row = 0
        while True:
            p = self.opinion(row).probs
            for child in self.children(row):
                token, q = self.draft[child], self.draft_probs(child)
                if q is None:
                    # Without replacement: the probability among what siblings left.
                    if self.u(child) < p[token] / sum(p):
                        break
                    p = [0.0 if i == token else each for i, each in enumerate(p)]
                    continue
                if self.u(child) * q[token] < p[token]:
                    break
                p = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
                return self.answer(row, self.sampled(p, row))
            else:
                return self.answer(row, self.sampled(p, row))
            row = child

    def block(self) -> tuple[list[int], list[int]]:
        """Sun et al., 2024, algorithm 2; M_b: p, M_s: q."""
        length = 0
        while length + 1 < len(self.draft) and 0 <= self.draft[length + 1] < self.logits.shape[1]:
            length += 1
        joint, stands = [1.0], 0
        for i in range(1, length + 1):
            token, p, q = self.draft[i], self.opinion(i - 1).probs, self.one_hot(i)
            joint.append(min(1.0, joint[-1] * p[token] / q[token]))
            h = joint[i]
            if i < length:
                p, q = self.opinion(i).probs, self.one_hot(i + 1)
                rest = sum(max(joint[i] * a - b, 0.0) for a, b in zip(p, q, strict=True))
                h = rest / (rest + 1 - joint[i]) if rest else 0.0
            if self.u(i) < h:
                stands = i
        p = self.opinion(stands).probs
        if stands < length:
            p = [max(joint[stands] * a - b, 0.0) for a, b in zip(p, self.one_hot(stands + 1), strict=True)]
        return self.answer(stands, self.sampled(p, stands))

    def members(self) -> tuple[list[int], list[int]]:
        stands = [0]
        for child in range(1, len(self.draft)):
            parent = self.parents[child]
            if parent in stands and child in self.children(parent) and self.member(parent, child):
                stands.append(child)
        last = max(stands, key=lambda row: (len(self.path(row)), -row))
        chain = all(parent == row - 1 for row, parent in enumerate(self.parents))
        if self.asked.rule.strategy == ask.TOPP and chain:
            last = self.after_window(last)
        return self.answer(last, self.opinion(last).own)

    def member(self, parent: int, child: int) -> bool:
        rule, said, token = self.asked.rule, self.opinion(parent), self.draft[child]
        if rule.strategy == ask.TOPP:
            return said.probs[token] > 0 and said.order.index(token) < rule.max_candidate_len
        entropy = -sum(p * math.log(p) for p in said.probs if p)
        return said.probs[token] > min(rule.typical_epsilon, rule.typical_delta * math.exp(-entropy))

    def after_window(self, last: int) -> int:
        window = self.asked.rule.verify_window
        behind = range(last + 1, last + 2 + window)
        if not window or behind[-1] >= len(self.draft):
            return last
        for row in behind:
            said = self.opinion(row - 1)
            wanted = said.order[1 if row == behind[0] else 0]
            if self.draft[row] != wanted or said.z[wanted] == -math.inf:
                return last
        return behind[-1]


def plainly(logits: torch.Tensor, asked: list[Asked]) -> list[tuple[list[int], list[int]]]:
    found, begin = [], 0
    for one in asked:
        rows = len(one.draft) + 1
        found.append(Judge(logits[begin : begin + rows], one).judge())
        begin += rows
    return found


def spoken(answers: Answers, asked: list[Asked]) -> list[tuple[list[int], list[int]]]:
    """What was answered, in the same form: tokens, and rows counted from the sequence's own root."""
    found, begin = [], 0
    for index, one in enumerate(asked):
        end = begin + int(answers.accepted[index]) + 1
        assert not answers.failed[index]
        found.append((answers.tokens[begin:end].tolist(), [row - begin for row in answers.rows[begin:end].tolist()]))
        begin += len(one.draft) + 1
    return found
