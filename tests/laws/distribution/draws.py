"""Many texts at once, each with a seed of its own: several verify steps until a block is full, and what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch

from kernels.verify.questions import (
    RULE,
    Answers,
    DraftProbs,
    Edits,
    Masks,
    Questions,
    mask_of,
)
from tests.laws.distribution.drafters import Drafter, Drafts
from tests.laws.distribution.statistics import holm, p_values
from tests.laws.distribution.toy import PROMPT, Sampling, Toy, blocks

Verify = Callable[[torch.Tensor, Questions], Answers]
# The first block's place in its text: any, and not 0.
FIRST = 7
MOST_DRAFTED = 8


@dataclass(frozen=True)
class Case:
    name: str
    toy: Toy
    sampling: Sampling
    strategy: int
    drafter: Drafter
    length: int = 3  # of a block
    lossless: bool = True

    @property
    def rule_words(self) -> np.ndarray:
        return replace(self.sampling.rule, strategy=self.strategy).words(FIRST)


def draw(case: Case, verify: Verify, count: int, batch: int = 100_000) -> np.ndarray:
    """int64 [V ** length]: how often each block came, of `count` seeds from 0 on."""
    counted = np.zeros(case.toy.vocab_size**case.length, np.int64)
    table = torch.from_numpy(case.toy.logits())
    for begin in range(0, count, batch):
        texts = _texts(case, table, verify, np.arange(begin, min(begin + batch, count)))
        places = case.toy.vocab_size ** np.arange(case.length - 1, -1, -1)
        counted += np.bincount(texts @ places, minlength=len(counted))
    return counted


def _texts(case: Case, table: torch.Tensor, verify: Verify, seeds: np.ndarray) -> np.ndarray:
    """int64 [B, length]"""
    # Not a seed of the target's: what is drafted must not know its noise.
    chance = np.random.default_rng([int(seeds[0]), 4711])
    start = len(PROMPT)
    text = np.zeros((len(seeds), start + case.length + MOST_DRAFTED), np.int64)
    text[:, :start] = PROMPT
    sizes = np.full(len(seeds), start)
    while len(open_ := np.flatnonzero(sizes < start + case.length)):
        context = text[open_[:, None], sizes[open_, None] + [-2, -1]]
        drafts = case.drafter(context, chance)
        rows = _Rows(case, drafts, context)
        rules = np.tile(case.rule_words, (len(open_), 1))
        records = rules.view(RULE)[:, 0]
        records["seed"] = seeds[open_]
        records["position"] += sizes[open_] - start
        questions = rows.questions(rules, text, sizes, open_)
        answers = verify(table[rows.contexts[:, 0], rows.contexts[:, 1]], questions)
        assert not answers.failed.numpy().any()
        accepted = answers.accepted.numpy().astype(np.int64)
        for place in range(int(accepted.max()) + 1):
            there = np.flatnonzero(accepted >= place)
            tokens = answers.tokens.numpy()[rows.begins[there] + place]
            text[open_[there], sizes[open_[there]] + place] = tokens
        sizes[open_] += accepted + 1
    return text[:, start : start + case.length]


class _Rows:
    """The rows of a batch of drafts: padded first, then those that are there, one after the other."""

    def __init__(self, case: Case, drafts: Drafts, context: np.ndarray) -> None:
        self._case, self._drafts = case, drafts
        many, most = drafts.tokens.shape
        assert most <= MOST_DRAFTED
        self._there = np.arange(most + 1) <= drafts.lengths[:, None]
        self.begins = np.concatenate([[0], np.cumsum(drafts.lengths + 1)])
        # What is no token has a row, too; any.
        ids = drafts.tokens % case.toy.vocab_size
        contexts = np.zeros((many, most + 1, 2), np.int64)
        contexts[:, 0] = context
        for row in range(1, most + 1):
            parent = drafts.parents[:, row - 1]
            contexts[:, row, 0] = contexts[np.arange(many), parent, 1]
            contexts[:, row, 1] = ids[:, row - 1]
        self.contexts = contexts[self._there]

    def _flat(self, behind_roots: np.ndarray, root: int) -> torch.Tensor:
        """[B, K] with a value for the root before it, without what isn't there."""
        padded = np.pad(behind_roots, ((0, 0), (1, 0)), constant_values=root)
        return torch.from_numpy(padded[self._there].astype(np.int32))

    def questions(self, rules: np.ndarray, text: np.ndarray, sizes: np.ndarray, open_: np.ndarray) -> Questions:
        drafts = self._drafts
        return Questions(
            rules=torch.from_numpy(rules),
            begins=torch.from_numpy(self.begins.astype(np.int32)),
            drafted=self._flat(drafts.tokens, -1),
            parents=self._flat(drafts.parents + self.begins[:-1, None], -1),
            edits=self._edits(text, sizes, open_),
            masks=self._masks(),
            draft_probs=self._draft_probs(),
        )

    def _edits(self, text: np.ndarray, sizes: np.ndarray, open_: np.ndarray) -> Edits | None:
        sampling, size = self._case.sampling, self._case.toy.vocab_size
        if not sampling.rule.penalised and not sampling.bias:
            return None
        text, sizes, many = text[open_], sizes[open_], len(open_)
        generated = (np.arange(text.shape[1]) < sizes[:, None]) & (np.arange(text.shape[1]) >= len(PROMPT))
        counts = np.stack([((text == token) & generated).sum(1) for token in range(size)], 1)
        seen = (counts > 0) | np.isin(np.arange(size), PROMPT)
        bias = np.array(sorted(sampling.bias.items())).reshape(-1, 2)
        return Edits(
            seen_begins=_ints(np.concatenate([[0], np.cumsum(seen.sum(1))])),
            seen_ids=_ints(np.nonzero(seen)[1]),
            seen_counts=_ints(counts[seen]),
            bias_begins=_ints(np.arange(many + 1) * len(bias)),
            bias_ids=_ints(np.tile(bias[:, 0], many)),
            bias_values=torch.from_numpy(np.tile(bias[:, 1], many).astype(np.float32)),
            forbidden_begins=torch.zeros(int(self.begins[-1]) + 1, dtype=torch.int32),
            forbidden_ids=torch.zeros(0, dtype=torch.int32),
        )

    def _masks(self) -> Masks | None:
        allowed = self._case.sampling.allowed
        if allowed is None:
            return None
        bits = torch.from_numpy(mask_of(allowed, self._case.toy.vocab_size))[None]
        return Masks(bits, torch.zeros(int(self.begins[-1]), dtype=torch.int32))

    def _draft_probs(self) -> DraftProbs | None:
        drafts = self._drafts
        if drafts.probs is None:
            return None
        assert drafts.dense is not None
        used = drafts.dense & self._there[:, 1:]
        of_row = np.full(used.shape, -1)
        of_row[used] = np.arange(used.sum())
        return DraftProbs(torch.from_numpy(drafts.probs[used]), self._flat(of_row, -1))


def _ints(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values).astype(np.int32))


# Judging ------------------------------------------------------------------------------------------------

BAR = 1e-4


def least_p(cases: Iterable[Case], verify: Verify, draws: int) -> dict[str, float]:
    """Of each case, the least of its p-values after Holm's correction over those of all."""
    found: list[tuple[str, float]] = []
    for case in cases:
        counts = draw(case, verify, draws)
        values = p_values(counts, blocks(case.toy, case.sampling, case.length), case.toy.vocab_size, case.length)
        found += [(case.name, value) for value in values]
    least: dict[str, float] = {}
    for (name, _), value in zip(found, holm([value for _, value in found]), strict=True):
        least[name] = min(value, least.get(name, 1.0))
    return least
