"""The facts of rows in plain torch, one row after the other; strategies.py decides on them. The reference for the
other two.

README.md beside this file is the specification; this is it, written to be read. Whatever else computes verdicts
(cpu.py, fused.py) gives the same integers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from kernels.verify import noise
from kernels.verify.numbers import LN_UNIT, UNIT, as_mass, ln, mass
from kernels.verify.questions import Answers, Questions
from kernels.verify.strategies import FAILED, is_token, judge

_UNITS = float(2**-40)
# A smaller rest may be a rounding error and counts as 0.
_LEAST_REST = float(2**-40)


def verify(logits: torch.Tensor, questions: Questions) -> Answers:
    """`logits` [R, V], float32 or bfloat16, are not changed."""
    rows, sequences = questions.drafted.shape[0], questions.rules.shape[0]
    answers = Answers(
        tokens=torch.full((rows,), -1, dtype=torch.int32),
        rows=torch.full((rows,), -1, dtype=torch.int32),
        accepted=torch.zeros(sequences, dtype=torch.int32),
        failed=torch.zeros(sequences, dtype=torch.int32),
    )
    for index in range(sequences):
        sequence = _Sequence(logits, questions, index)
        last, token = judge(sequence)
        if last == FAILED:
            answers.failed[index] = 1
            continue
        path = sequence.path_to(last)
        # A draft token is accepted by the row before its own.
        tokens = [*(sequence.drafted[row] for row in path[1:]), token]
        span = slice(sequence.begin, sequence.begin + len(path))
        answers.tokens[span] = torch.tensor(tokens, dtype=torch.int32)
        answers.rows[span] = torch.tensor(path, dtype=torch.int32)
        answers.accepted[index] = len(path) - 1
    return answers


@dataclass(slots=True)
class _Row:
    """One row of logits after its edits: the facts that strategies.py lists."""

    valid: bool
    z: torch.Tensor  # float32 [V], scores over the temperature (greedy: the scores)
    score: torch.Tensor  # float32 [V], z + noise (greedy: z); -inf where an id isn't allowed
    masses: torch.Tensor  # int64 [V], 0 where an id isn't allowed
    ranks: torch.Tensor  # int64 [V], how many ids are more probable
    allowed: torch.Tensor  # bool [V]
    total: int

    def mass(self, token: int) -> int:
        return int(self.masses[token])

    def rank(self, token: int) -> int:
        return int(self.ranks[token])

    def below(self, token: int) -> float:
        return float(self.z[token] - self.z.max())

    def allows(self, token: int) -> bool:
        return bool(self.allowed[token])

    def whole(self) -> float:
        return float(ln(_float32(self.total)) - LN_UNIT)

    def mean_below(self) -> float:
        weighted = self.masses.to(torch.float32) * _UNITS * torch.where(self.masses > 0, self.z - self.z.max(), 0.0)
        return float(int(as_mass(weighted).sum())) / float(self.total)

    def probabilities(self) -> torch.Tensor:
        """float32 [V]"""
        return self.masses.to(torch.float32) * (1.0 / _float32(self.total))


class _Sequence:
    """One sequence's rows, its rule, and its draft: what strategies.py lists."""

    def __init__(self, logits: torch.Tensor, questions: Questions, index: int) -> None:
        self._logits, self._questions, self._index = logits, questions, index
        self.rule = questions.records[index]
        self._seed, self._position = int(self.rule.seed), int(self.rule.position)
        self.begin, self.end = questions.begins[index : index + 2].tolist()
        self.drafted: list[int] = questions.drafted.tolist()
        self.parents: list[int] = questions.parents.tolist()
        self.notes = [0] * (self.end - self.begin)
        self.vocabulary = logits.shape[1]
        self._rows: dict[int, _Row] = {}

    def path_to(self, row: int) -> list[int]:
        path = [row]
        while self.parents[path[0]] >= 0:
            path.insert(0, self.parents[path[0]])
        return path

    def look(self, row: int, masses: bool) -> _Row:
        if row not in self._rows:
            self._rows[row] = self._look(row)
        return self._rows[row]

    def own(self, row: int) -> int:
        found = self.look(row, False)
        return _lowest_argmax(found.score) if found.valid else FAILED

    def own_without(self, found: _Row, count: int) -> int:
        score = found.score.clone()
        score[self.notes[:count]] = -math.inf
        return _lowest_argmax(score)

    def uniform(self, row: int) -> float:
        return noise.uniform(self._seed, self._position, row - self.begin)

    def is_certain(self, row: int) -> bool:
        return self._draft_probs(row) is None

    def draft_prob(self, row: int) -> float:
        probs = self._draft_probs(row)
        return 1.0 if probs is None else float(probs[self.drafted[row]])

    def rest(self, found: _Row, row: int, joint: float) -> float:
        return float(int(as_mass(self._rest(found, row, joint).clamp(min=0.0)).sum())) * _UNITS

    def residual(self, found: _Row, row: int, weight: float) -> int:
        rest = self._rest(found, row, weight)
        kept = (rest > _LEAST_REST).nonzero().view(-1)
        if kept.shape[0] == 0:
            return _lowest_argmax(found.score)
        depth = len(self.path_to(row)) - 2
        return int(kept[_lowest_argmax(ln(rest[kept]) + noise.gumbel(self._seed, self._position + depth, kept))])

    def _rest(self, found: _Row, row: int, weight: float) -> torch.Tensor:
        """float32 [V], weight * target_probs - draft_probs."""
        return found.probabilities() * torch.tensor(weight, dtype=torch.float32) - self._draft_probs(row)

    def _draft_probs(self, row: int) -> Any:
        """float32 [V]; None: a certain draft."""
        probs = self._questions.draft_probs
        if probs is None or probs.of_row[row] < 0:
            return None
        return probs.probs[probs.of_row[row]]

    # A row ------------------------------------------------------------------------------------------------

    def _look(self, row: int) -> _Row:
        scores, inverse = self._edited(row), torch.tensor(self.rule.inverse or 1.0, dtype=torch.float32)
        z, top = scores * inverse, scores.max()
        ids = torch.arange(self.vocabulary)
        order = torch.sort(z, descending=True, stable=True).indices
        ranks = torch.empty_like(ids)
        ranks[order] = ids
        below = z - z.max()
        if self.rule.inverse == 0.0:
            allowed, noisy, masses = ranks == 0, z, torch.full_like(ids, UNIT)
        else:
            masses = mass(below)
            allowed = self._allowed(below, masses, order, ranks)
            noisy = z + noise.gumbel(self._seed, self._position + len(self.path_to(row)) - 1, ids)
        score, masses = torch.where(allowed, noisy, -math.inf), torch.where(allowed, masses, 0)
        # Also false for NaN, which counts as the highest.
        valid = math.isfinite(top) and math.isfinite(top * inverse)
        return _Row(valid, z, score, masses, ranks, allowed, int(masses.sum()))

    def _edited(self, row: int) -> torch.Tensor:
        """float32 [V]: penalties, biases, what is forbidden, what is allowed; in this order."""
        scores = self._logits[row].to(torch.float32, copy=True)
        edits, index = self._questions.edits, self._index
        # A row after an invalid id has no meaning, but may be read.
        path = [self.drafted[each] for each in self.path_to(row)[1:] if is_token(self, each)]
        counts: dict[int, int] = {}
        if edits is not None:
            span = slice(*edits.seen_begins[index : index + 2].tolist())
            counts = dict(zip(edits.seen_ids[span].tolist(), edits.seen_counts[span].tolist(), strict=True))
        for token in path:
            counts[token] = counts.get(token, 0) + 1
        self._penalise(scores, counts)
        if edits is not None:
            span = slice(*edits.bias_begins[index : index + 2].tolist())
            scores[edits.bias_ids[span].long()] += edits.bias_values[span]
            span = slice(*edits.forbidden_begins[row : row + 2].tolist())
            scores[edits.forbidden_ids[span].long()] = -math.inf
        masks = self._questions.masks
        if masks is not None and masks.of_row[row] >= 0:
            ids = torch.arange(scores.shape[0])
            bits = masks.bits[masks.of_row[row]].long()
            scores[(bits[ids // 32] >> ids % 32 & 1) == 0] = -math.inf
        return scores

    def _penalise(self, scores: torch.Tensor, counts: dict[int, int]) -> None:
        rule = self.rule
        repetition, presence, frequency = (
            torch.tensor(x, dtype=torch.float32) for x in (rule.repetition, rule.presence, rule.frequency)
        )
        ids = torch.tensor(list(counts), dtype=torch.int64)
        if repetition != 1.0:
            old = scores[ids]
            scores[ids] = torch.where(old > 0, old / repetition, old * repetition)
        if presence != 0.0 or frequency != 0.0:
            ids = torch.tensor([token for token in counts if counts[token]], dtype=torch.int64)
            often = torch.tensor([count for count in counts.values() if count], dtype=torch.float32)
            scores[ids] -= frequency * often + presence

    def _allowed(
        self, below: torch.Tensor, masses: torch.Tensor, order: torch.Tensor, rank: torch.Tensor
    ) -> torch.Tensor:
        """The ids allowed by top_k, then top_p of these, then min_p; the most probable id always."""
        allowed = torch.ones(below.shape[0], dtype=torch.bool)
        if self.rule.top_k > 0:
            allowed = rank < self.rule.top_k
        if self.rule.top_p < 1.0:
            kept = torch.where(allowed, masses, 0)
            before = torch.empty_like(masses)
            before[order] = kept[order].cumsum(0) - kept[order]
            reach = float(self.rule.top_p) * float(int(kept.sum()))
            allowed &= before.double() < reach
        allowed &= below >= float(self.rule.floor)
        # Not ids at -inf, which may tie with allowed ones.
        allowed &= below > -math.inf
        return allowed | (rank == 0)


def _lowest_argmax(values: torch.Tensor) -> int:
    return int((values == values.max()).nonzero()[0])


def _float32(whole: int) -> torch.Tensor:
    """Rounded once."""
    return torch.tensor(whole, dtype=torch.int64).to(torch.float32)


# Log-probabilities ------------------------------------------------------------------------------------------


def logprobs(
    logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities of `tokens[i]` in `rows[i]`, and of the `count` most probable ids there (ties by id): values
    [N], ids [N, count], their values [N, count]. They are of the input logits, before any parameter."""
    raw = logits[rows.long()].float()
    all_of_them = raw - torch.logsumexp(raw, -1, keepdim=True)
    ids = torch.sort(raw, dim=-1, descending=True, stable=True).indices[:, :count]
    own = all_of_them.gather(1, tokens.long()[:, None])[:, 0]
    return own, ids.to(torch.int32), all_of_them.gather(1, ids)
