"""Verification in plain torch, one sequence and one row after the other. The reference for the other two.

README.md beside this file is the specification; this is it, written to be read. Whatever else computes verdicts
(cpu.py, fused.py) gives the same integers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kernels.verify.noise import gumbel, uniform
from kernels.verify.numbers import LN_UNIT, as_mass, ln, mass
from kernels.verify.questions import (
    ACCEPT,
    ALL,
    BLOCK,
    CANDIDATES,
    DELTA,
    EPSILON,
    FLOOR,
    FREQUENCY,
    INVERSE,
    MATCH,
    NORMAL,
    POSITION,
    PRESENCE,
    REJECTION,
    REPETITION,
    SEED,
    STRATEGY,
    TOP_K,
    TOP_P,
    TOPP,
    TYPICAL,
    WINDOW,
    Answers,
    Questions,
)

LOST = float(2**-40)


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
        judge = _JUDGES[sequence.strategy] if sequence.accept == NORMAL else _without_asking
        verdict = judge(sequence)
        if verdict is None:
            answers.failed[index] = 1
            continue
        path, own = verdict
        for place, row in enumerate(path):
            last = place == len(path) - 1
            # A draft token is accepted by the row before its own.
            answers.tokens[sequence.begin + place] = own if last else sequence.drafted[path[place + 1]]
            answers.rows[sequence.begin + place] = row
        answers.accepted[index] = len(path) - 1
    return answers


# The accepted rows, from the root, and the token that the last of them chose; None: its logits are invalid.
Verdict = tuple[list[int], int] | None


@dataclass(slots=True)
class _Row:
    """One row of logits after its edits."""

    z: torch.Tensor  # float32 [V], scores over the temperature (greedy: the scores)
    first: int  # the likeliest id
    score: torch.Tensor  # float32 [V], z + noise; -inf where a token isn't allowed
    masses: torch.Tensor  # int64 [V], 0 where a token isn't allowed
    total: int
    rank: torch.Tensor  # int64 [V], how many ids are likelier
    allowed: torch.Tensor  # bool [V]

    @property
    def own(self) -> int:
        return _lowest_argmax(self.score)


class _Sequence:
    """One sequence's rows, its rule, and its draft's parents."""

    def __init__(self, logits: torch.Tensor, questions: Questions, index: int) -> None:
        self._logits, self._questions, self._index = logits, questions, index
        words = questions.rules[index]
        self.words: list[int] = words.tolist()
        self.floats: list[float] = words.view(torch.float32).tolist()
        self.begin, self.end = questions.begins[index : index + 2].tolist()
        self.drafted: list[int] = questions.drafted.tolist()
        self.parents: list[int] = questions.parents.tolist()
        self._vocabulary = logits.shape[1]
        self.seed = _two_words(self.words, SEED)
        self.position = _two_words(self.words, POSITION)
        self.greedy = self.floats[INVERSE] == 0.0
        self.accept = self.words[ACCEPT]
        branches = any(self.parents[row] != row - 1 for row in range(self.begin + 1, self.end))
        strategy = MATCH if self.greedy else self.words[STRATEGY]
        # Joint acceptance is defined for chains; the tokens of a tree are verified one by one.
        self.strategy = REJECTION if strategy == BLOCK and branches else strategy
        self.is_chain = not branches
        self._rows: dict[int, _Row | None] = {}

    def children(self, row: int) -> list[int]:
        return [child for child in range(row + 1, self.end) if self.parents[child] == row and self.is_token(child)]

    def is_token(self, child: int) -> bool:
        """Whether the drafted id is in the vocabulary: others are never accepted."""
        return 0 <= self.drafted[child] < self._vocabulary

    def path_to(self, row: int) -> list[int]:
        path = [row]
        while self.parents[path[0]] >= 0:
            path.insert(0, self.parents[path[0]])
        return path

    def depth(self, row: int) -> int:
        return len(self.path_to(row)) - 1

    def uniform(self, child: int) -> float:
        """The uniform number that verifies the draft token of row `child`. Only this step uses it: no other step of the
        sequence has the same root."""
        return uniform(self.seed, self.position, child - self.begin)

    def draft_probs(self, child: int) -> torch.Tensor | None:
        """float32 [V]; None: a certain draft."""
        probs = self._questions.draft_probs
        if probs is None or probs.of_row[child] < 0:
            return None
        return probs.probs[probs.of_row[child]]

    # A row ------------------------------------------------------------------------------------------------

    def row(self, row: int) -> _Row | None:
        """None: nothing may be chosen from it."""
        if row not in self._rows:
            self._rows[row] = self._look(row)
        return self._rows[row]

    def _look(self, row: int) -> _Row | None:
        scores = self._edited(row)
        top = scores.max()
        inverse = torch.tensor(1.0 if self.greedy else self.floats[INVERSE], dtype=torch.float32)
        z = scores * inverse
        # Also false for NaN, which counts as the highest.
        if not math.isfinite(top) or not math.isfinite(top * inverse):
            return None
        size = z.shape[0]
        order = torch.sort(z, descending=True, stable=True).indices
        rank = torch.empty(size, dtype=torch.int64)
        rank[order] = torch.arange(size)
        if self.greedy:
            first = _lowest_argmax(z)
            allowed = torch.arange(size) == first
            return _Row(z, first, z, allowed * (1 << 40), 1 << 40, rank, allowed)
        below = z - z.max()
        masses = mass(below)
        allowed = self._allowed(below, masses, order, rank)
        masses = torch.where(allowed, masses, 0)
        noisy = z + gumbel(self.seed, self.position + self.depth(row), torch.arange(size))
        score = torch.where(allowed, noisy, -math.inf)
        return _Row(z, int(order[0]), score, masses, int(masses.sum()), rank, allowed)

    def _edited(self, row: int) -> torch.Tensor:
        """float32 [V]: penalties, biases, what is forbidden, what is allowed; in this order."""
        scores = self._logits[row].to(torch.float32, copy=True)
        edits, index = self._questions.edits, self._index
        # A row after an invalid id has no meaning, but may be read.
        path = [self.drafted[each] for each in self.path_to(row)[1:] if self.is_token(each)]
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
        repetition, presence, frequency = (
            torch.tensor(self.floats[word], dtype=torch.float32) for word in (REPETITION, PRESENCE, FREQUENCY)
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
        if self.words[TOP_K] > 0:
            allowed = rank < self.words[TOP_K]
        if self.floats[TOP_P] < 1.0:
            kept = torch.where(allowed, masses, 0)
            before = torch.empty_like(masses)
            before[order] = kept[order].cumsum(0) - kept[order]
            reach = self.floats[TOP_P] * float(int(kept.sum()))
            allowed &= before.double() < reach
        allowed &= below >= self.floats[FLOOR]
        # Not ids at -inf, which may tie with allowed ones.
        allowed &= below > -math.inf
        return allowed | (rank == 0)


def _lowest_argmax(values: torch.Tensor) -> int:
    return int((values == values.max()).nonzero()[0])


def _two_words(words: list[int], at: int) -> int:
    return words[at] & 0xFFFFFFFF | (words[at + 1] & 0xFFFFFFFF) << 32


# The strategies -------------------------------------------------------------------------------------------


def _without_asking(sequence: _Sequence) -> Verdict:
    """Accept policies ALL (the first child of each row is accepted) and NONE."""
    row = sequence.begin
    while (said := sequence.row(row)) is not None:
        children = sequence.children(row) if sequence.accept == ALL else []
        if not children:
            return sequence.path_to(row), said.own
        row = children[0]
    return None


def _match(sequence: _Sequence) -> Verdict:
    """A draft token is accepted if it is the own token of the row before it."""
    row = sequence.begin
    while (said := sequence.row(row)) is not None:
        child = next((c for c in sequence.children(row) if sequence.drafted[c] == said.own), None)
        if child is None:
            return sequence.path_to(row), said.own
        row = child
    return None


def _rejection(sequence: _Sequence) -> Verdict:
    """Accept a draft token with probability min(1, target_prob / draft_prob); otherwise sample the residual."""
    row = sequence.begin
    while (said := sequence.row(row)) is not None:
        child, own = _judge_children(sequence, row, said)
        if child is None:
            return sequence.path_to(row), own
        row = child
    return None


def _judge_children(sequence: _Sequence, row: int, said: _Row) -> tuple[int | None, int]:
    """The accepted child; or none, and the token sampled from the rest without the rejected tokens."""
    left, total = said.masses.clone(), said.total
    score = said.score.clone()
    for child in sequence.children(row):
        token = sequence.drafted[child]
        own, chance = int(left[token]), sequence.uniform(child)
        probs = sequence.draft_probs(child)
        if probs is not None:
            if chance * float(probs[token]) * float(total) < float(own):
                return child, -1
            return None, _sample_residual(sequence, row, said, probs, 1.0)
        if chance * float(total) < float(own):
            return child, -1
        left[token], total, score[token] = 0, total - own, -math.inf
    return None, _lowest_argmax(score)


def _float32(whole: int) -> torch.Tensor:
    """Rounded once."""
    return torch.tensor(whole, dtype=torch.int64).to(torch.float32)


def _probabilities(said: _Row) -> torch.Tensor:
    """float32 [V]"""
    return said.masses.to(torch.float32) * (1.0 / _float32(said.total))


def _sample_residual(sequence: _Sequence, row: int, said: _Row, probs: torch.Tensor, weight: float) -> int:
    """Sample from max(weight * target_probs - draft_probs, 0); from the target if that is 0 everywhere."""
    rest = _probabilities(said) * torch.tensor(weight, dtype=torch.float32) - probs
    # Smaller values may be rounding errors and count as 0.
    kept = (rest > LOST).nonzero().view(-1)
    if kept.shape[0] == 0:
        return said.own
    noise = gumbel(sequence.seed, sequence.position + sequence.depth(row), kept)
    return int(kept[_lowest_argmax(ln(rest[kept]) + noise)])


def _block(sequence: _Sequence) -> Verdict:
    """Accept as much of the chain as its joint probability allows (Sun et al., 2024)."""
    rows = list(range(sequence.begin, sequence.end))
    said = [sequence.row(rows[0])]
    if said[0] is None:
        return None
    # The draft ends before an invalid id, or a token whose row is invalid.
    length = 0
    while length + 1 < len(rows) and sequence.is_token(rows[length + 1]):
        said.append(sequence.row(rows[length + 1]))
        if said[-1] is None:
            break
        length += 1
    joint = [1.0]
    stands = 0
    for place in range(1, length + 1):
        before, row = said[place - 1], rows[place]
        assert before is not None
        joint.append(_joint(sequence, before, row, joint[-1]))
        here = joint[place]
        if place < length:
            rest = _rest(sequence, said[place], row + 1, here)
            here = rest / (rest + 1.0 - here) if rest > 0.0 else 0.0
        if sequence.uniform(row) < here:
            stands = place
    last = said[stands]
    assert last is not None
    path = rows[: stands + 1]
    if stands == length:
        return path, last.own
    probs = sequence.draft_probs(path[-1] + 1)
    if probs is not None:
        return path, _sample_residual(sequence, path[-1], last, probs, joint[stands])
    score = last.score.clone()
    score[sequence.drafted[path[-1] + 1]] = -math.inf
    return path, _lowest_argmax(score)


def _joint(sequence: _Sequence, before: _Row, row: int, joint: float) -> float:
    """min(1, joint * target_prob / draft_prob) of the draft token of `row`."""
    token = sequence.drafted[row]
    target_prob = float(int(before.masses[token])) / float(before.total)
    probs = sequence.draft_probs(row)
    draft_prob = 1.0 if probs is None else float(probs[token])
    if target_prob == 0.0:
        return 0.0
    return min(1.0, joint * target_prob / draft_prob) if draft_prob > 0.0 else 1.0


def _rest(sequence: _Sequence, said: _Row | None, child: int, joint: float) -> float:
    """The sum of max(joint * target_probs - draft_probs, 0) over the vocabulary."""
    assert said is not None
    probs = sequence.draft_probs(child)
    if probs is None:
        certain = float(int(said.masses[sequence.drafted[child]])) / float(said.total)
        return joint * (1.0 - certain)
    rest = _probabilities(said) * torch.tensor(joint, dtype=torch.float32) - probs
    return float(int(as_mass(rest.clamp(min=0.0)).sum())) * LOST


def _members(sequence: _Sequence) -> Verdict:
    """TYPICAL and TOPP: the deepest path whose tokens all meet the criterion. Not lossless."""
    stands = {sequence.begin}
    if sequence.row(sequence.begin) is None:
        return None
    for child in range(sequence.begin + 1, sequence.end):
        parent = sequence.parents[child]
        if parent not in stands or not sequence.is_token(child) or sequence.row(child) is None:
            continue
        said = sequence.row(parent)
        assert said is not None
        if _good_enough(sequence, said, child):
            stands.add(child)
    last = max(sorted(stands), key=sequence.depth)
    if sequence.strategy == TOPP and sequence.is_chain:
        last = _after_window(sequence, last)
    said = sequence.row(last)
    assert said is not None
    return sequence.path_to(last), said.own


def _good_enough(sequence: _Sequence, said: _Row, child: int) -> bool:
    token = sequence.drafted[child]
    if not said.allowed[token]:
        return False
    if sequence.strategy == TOPP:
        return int(said.rank[token]) < sequence.words[CANDIDATES]
    below = said.z - said.z[said.first]
    # ln(total / UNIT), and the entropy: that minus the mean of `below`.
    whole = float(ln(_float32(said.total)) - LN_UNIT)
    fractions = said.masses.to(torch.float32) * float(2**-40)
    mean = float(int(as_mass(fractions * torch.where(said.masses > 0, below, 0.0)).sum())) / float(said.total)
    threshold = min(sequence.floats[EPSILON], sequence.floats[DELTA] - (whole - mean))
    return float(below[token]) - whole > threshold


def _after_window(sequence: _Sequence, last: int) -> int:
    """Whether the next draft token is the second most probable, and all of a window after it the most probable."""
    window = sequence.words[WINDOW]
    if window == 0 or last + 1 + window >= sequence.end:
        return last
    for row in range(last, last + 1 + window):
        said = sequence.row(row)
        if said is None or not sequence.is_token(row + 1):
            return last
        token = sequence.drafted[row + 1]
        # A row that allows only one id has no second.
        if int(said.rank[token]) != (1 if row == last else 0) or said.z[token] == -math.inf:
            return last
    return last + 1 + window if sequence.row(last + 1 + window) is not None else last


_JUDGES = {MATCH: _match, REJECTION: _rejection, BLOCK: _block, TYPICAL: _members, TOPP: _members}


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
