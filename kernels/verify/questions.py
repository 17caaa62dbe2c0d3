"""The input and output of verification as arrays: the same for plain torch, compiled loops and Triton, so that they can
be compared, and a GPU gets them in a few copies.

A sequence with a draft of k tokens has k + 1 rows of logits. The first row (the root) is the distribution after the
text; every other row is the one after a draft token. A chain is a tree whose parents count up:

    text . . . t | d1 d2 d3             rows        0   1   2   3
                                        drafted    -1  d1  d2  d3
                                        parents    -1   0   1   2
    two guesses for one position:       drafted    -1   a   b   c      c follows a
                                        parents    -1   0   0   1

So a draft token is in the row that follows it, and is verified by the row of its parent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

# Strategies. At temperature 0 all of them are MATCH.
MATCH, REJECTION, BLOCK, TYPICAL, TOPP = range(5)
# Accept policies: NORMAL follows the strategy, ALL accepts every draft token, NONE accepts none.
NORMAL, ALL, NONE = range(3)

# A lower temperature counts as 0: dividing by it would overflow.
SMALLEST_TEMPERATURE = 1e-5
LONGEST_DRAFT = 64  # tokens of a draft, and so its depth

# A rule as kernels read it.
RULE = np.dtype((np.record, [
    ("strategy", np.int32),
    ("accept", np.int32),
    ("inverse", np.float32),  # 1 / temperature; 0: greedy
    ("top_k", np.int32),  # 0: off
    ("top_p", np.float32),  # 1 or more: off
    ("floor", np.float32),  # ln(min_p); -inf: off
    ("seed", np.int64),
    ("position", np.int64),  # index, in its sequence, of the token after the text
    ("repetition", np.float32),  # 1: off
    ("presence", np.float32),  # 0: off
    ("frequency", np.float32),  # 0: off
    ("candidates", np.int32),  # TOPP: draft tokens among this many most probable ids are accepted
    ("window", np.int32),  # TOPP: tokens that must be the most probable after a second most probable one; 0: off
    ("epsilon", np.float32),  # TYPICAL: ln of the probability that always suffices
    ("delta", np.float32),  # TYPICAL: ln of the factor of exp(-entropy)
    ("unused", np.int32, (3,)),  # up to a multiple of 16 bytes
]))  # fmt: skip
WORDS = RULE.itemsize // 4


def word_of(field: str) -> int:
    """Where a field of a rule begins, in words of 32 bits."""
    assert RULE.fields is not None
    return int(RULE.fields[field][1]) // 4


@dataclass(frozen=True, slots=True)
class Rule:
    """How one sequence's tokens are chosen and its drafts verified, without its position and counts. Defaults: greedy,
    without edits."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    strategy: int = MATCH
    accept: int = NORMAL
    max_candidate_len: int = 5
    verify_window: int = 2
    typical_epsilon: float = 0.09
    typical_delta: float = 0.3

    @property
    def greedy(self) -> bool:
        return self.temperature < SMALLEST_TEMPERATURE

    @property
    def penalised(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def words(self, position: int = 0) -> np.ndarray:
        """int32 [WORDS], a RULE"""
        record = np.zeros(1, RULE)
        rule = record[0]
        rule.strategy, rule.accept = MATCH if self.greedy else self.strategy, self.accept
        rule.inverse = 0.0 if self.greedy else 1.0 / self.temperature
        rule.top_k, rule.top_p, rule.floor = min(self.top_k, 2**31 - 1), self.top_p, _ln(self.min_p)
        rule.seed, rule.position = (self.seed + 2**63) % 2**64 - 2**63, position
        rule.repetition = self.repetition_penalty
        rule.presence, rule.frequency = self.presence_penalty, self.frequency_penalty
        rule.candidates, rule.window = self.max_candidate_len, self.verify_window
        rule.epsilon, rule.delta = _ln(self.typical_epsilon), _ln(self.typical_delta)
        return record.view(np.int32)


def _ln(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


@dataclass(slots=True)
class Edits:
    """Changes of logits before anything is chosen, as lists by sequence or by row: items begins[i]..begins[i + 1].

    By sequence: the distinct ids its penalties count, with how often each was generated (0: it is in the prompt
    only), and biases (-inf bans). By row: ids that may not follow it (min_tokens not reached, the end of a bad
    word). Counts of draft tokens aren't included: each row adds those on its path.
    No list names an id twice.
    """

    seen_begins: torch.Tensor  # int32 [B + 1]
    seen_ids: torch.Tensor  # int32 [..]
    seen_counts: torch.Tensor  # int32 [..]
    bias_begins: torch.Tensor  # int32 [B + 1]
    bias_ids: torch.Tensor  # int32 [..]
    bias_values: torch.Tensor  # float32 [..]
    forbidden_begins: torch.Tensor  # int32 [R + 1]
    forbidden_ids: torch.Tensor  # int32 [..]


@dataclass(slots=True)
class Masks:
    """Rows that may be followed by these ids only: bit i % 32 of word i // 32 is id i."""

    bits: torch.Tensor  # int32 [M, ceil(V / 32)]
    of_row: torch.Tensor  # int32 [R], -1: no mask


@dataclass(slots=True)
class DraftProbs:
    """Distributions that draft tokens were drawn from, by row; a row with -1 has a certain token (one-hot). Only chains
    have them: the tokens of a tree are certain."""

    probs: torch.Tensor  # float32 [D, V], each of sum 1
    of_row: torch.Tensor  # int32 [R]


@dataclass(slots=True)
class Questions:
    rules: torch.Tensor  # int32 [B, WORDS], each a RULE
    begins: torch.Tensor  # int32 [B + 1], the rows of sequence b are begins[b]..begins[b + 1]
    drafted: torch.Tensor  # int32 [R], -1 for a root
    parents: torch.Tensor  # int32 [R], a row of the whole batch before this one; -1 for a root
    edits: Edits | None = None
    masks: Masks | None = None
    draft_probs: DraftProbs | None = None

    @property
    def records(self) -> np.ndarray:
        """RULE [B], for rules on the host; the same memory."""
        return self.rules.numpy().view(RULE)[:, 0]


@dataclass(slots=True)
class Answers:
    """For sequence b: `tokens` from begins[b] on has `accepted[b]` draft tokens and one more of the target's own;
    `rows` has the row of the batch that chose or accepted each. `failed[b]`: its logits are invalid, there are no
    tokens. Entries after a sequence's tokens are undefined."""

    tokens: torch.Tensor  # int32 [R]
    rows: torch.Tensor  # int32 [R]
    accepted: torch.Tensor  # int32 [B]
    failed: torch.Tensor  # int32 [B], 0 or 1


@dataclass(slots=True)
class Asked:
    """One sequence's question in plain lists: what `gather` makes `Questions` of."""

    rule: Rule
    position: int = 0
    draft: Sequence[int] = ()
    # Row of the parent among this sequence's rows, for each drafted token; empty: a chain.
    parents: Sequence[int] = ()
    seen: Mapping[int, int] | None = None  # id -> how often it was generated
    bias: Mapping[int, float] | None = None
    forbidden: Sequence[Sequence[int]] = ()  # by row; empty: nothing
    allowed: Sequence[int] | None = None  # all ids that may be chosen
    draft_probs: Sequence[torch.Tensor | None] = ()  # by drafted token; empty: all certain


def gather(asked: Sequence[Asked], vocab_size: int) -> Questions:
    """Plain and slow enough for tests and for few sequences; who has many keeps the arrays."""
    drafted: list[int] = []
    parents: list[int] = []
    begins = [0]
    for one in asked:
        begin = begins[-1]
        drafted += [-1, *one.draft]
        parents += [-1, *(begin + parent for parent in one.parents or range(len(one.draft)))]
        begins.append(len(drafted))
    return Questions(
        rules=torch.from_numpy(np.stack([one.rule.words(one.position) for one in asked])),
        begins=_ints(begins),
        drafted=_ints(drafted),
        parents=_ints(parents),
        edits=_edits(asked),
        masks=_masks(asked, vocab_size),
        draft_probs=_draft_probs(asked),
    )


def _edits(asked: Sequence[Asked]) -> Edits | None:
    if not any(one.seen or one.bias or any(one.forbidden) for one in asked):
        return None
    seen = [sorted((one.seen or {}).items()) for one in asked]
    bias = [sorted((one.bias or {}).items()) for one in asked]
    forbidden = [ids for one in asked for ids in one.forbidden or [()] * (len(one.draft) + 1)]
    return Edits(
        seen_begins=_begins(seen),
        seen_ids=_ints([i for items in seen for i, _ in items]),
        seen_counts=_ints([count for items in seen for _, count in items]),
        bias_begins=_begins(bias),
        bias_ids=_ints([i for items in bias for i, _ in items]),
        bias_values=torch.tensor([value for items in bias for _, value in items], dtype=torch.float32),
        forbidden_begins=_begins(forbidden),
        forbidden_ids=_ints([i for ids in forbidden for i in ids]),
    )


def mask_of(allowed: Sequence[int], vocab_size: int) -> np.ndarray:
    """int32 [ceil(V / 32)] of a list of ids."""
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[np.asarray(allowed, np.int64)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def _masks(asked: Sequence[Asked], vocab_size: int) -> Masks | None:
    if all(one.allowed is None for one in asked):
        return None
    bits: list[np.ndarray] = []
    of_row: list[int] = []
    for one in asked:
        of_row += [-1 if one.allowed is None else len(bits)] * (len(one.draft) + 1)
        if one.allowed is not None:
            bits.append(mask_of(one.allowed, vocab_size))
    return Masks(torch.from_numpy(np.stack(bits)), _ints(of_row))


def _draft_probs(asked: Sequence[Asked]) -> DraftProbs | None:
    if not any(probs is not None for one in asked for probs in one.draft_probs):
        return None
    probs: list[torch.Tensor] = []
    of_row: list[int] = []
    for one in asked:
        assert not one.draft_probs or not one.parents or list(one.parents) == list(range(len(one.draft)))
        of_row.append(-1)
        for each in one.draft_probs or [None] * len(one.draft):
            of_row.append(-1 if each is None else len(probs))
            probs += [] if each is None else [each]
    return DraftProbs(torch.stack(probs).float(), _ints(of_row))


def _begins(lists: Sequence[Sequence[object]]) -> torch.Tensor:
    return _ints([0, *np.cumsum([len(items) for items in lists])])


def _ints(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)
