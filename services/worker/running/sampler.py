"""How each sequence of a step is sampled, as the arrays that kernels/verify asks for.

What a request says never changes and is kept as it was made; what its penalties count grows with its text. Both
live on the sequence (`sequence.sampler`), so that they go when it goes. Knows no logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Items

import numpy as np
import torch

from kernels.verify import questions as ask
from kernels.verify.questions import Edits, Masks, Questions, Rule, mask_of
from services.worker.running.runner import Facts, StepWork
from services.worker.running.sampling import stop_ids
from services.worker.scheduling.sequence import Sequence
from services.worker.verify.registry import STRATEGIES

_ACCEPT = {"normal": ask.NORMAL, "accept_all": ask.ALL, "reject_all": ask.NONE}
_NO_IDS = np.empty(0, np.int32)
_NO_VALUES = np.empty(0, np.float32)


class Counts:
    """How often each id was generated (0: it is in the prompt only), in arrays that grow."""

    __slots__ = ("_counts", "_ids", "_place", "_size")

    def __init__(self, prompt: Items[int]) -> None:
        known = np.array(list(dict.fromkeys(prompt)), np.int32)
        self._size = len(known)
        self._place = {int(token): place for place, token in enumerate(known)}
        self._ids = np.concatenate([known, np.empty(64, np.int32)])
        self._counts = np.zeros(len(self._ids), np.int32)

    def add(self, tokens: Items[int]) -> None:
        for token in tokens:
            place = self._place.get(token)
            if place is None:
                place = self._place[token] = self._size
                if place == len(self._ids):
                    self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                    self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
                self._ids[place] = token
                self._size += 1
            self._counts[place] += 1

    @property
    def ids(self) -> np.ndarray:
        return self._ids[: self._size]

    @property
    def counts(self) -> np.ndarray:
        return self._counts[: self._size]


class Sampler:
    """Of one sequence."""

    __slots__ = ("bad_words", "bias_ids", "bias_values", "counted", "counts", "edited", "held_back", "mask", "words")

    def __init__(self, sequence: Sequence, facts: Facts) -> None:
        sampling = sequence.sampling
        rule = _rule(sequence)
        self.words = rule.words()
        prompt = sequence.token_ids[: sequence.prompt_tokens]
        self.counts = Counts(prompt) if rule.penalised else None
        self.counted = sequence.prompt_tokens
        bias = dict(sampling.logit_bias) | {word[0]: -math.inf for word in sampling.bad_words if len(word) == 1}
        self.bias_ids = np.array(list(bias), np.int32)
        self.bias_values = np.array(list(bias.values()), np.float32)
        self.bad_words = [word for word in sampling.bad_words if len(word) > 1]
        # Ids that would end the text, as long as min_tokens forbids its end.
        ends = stop_ids(sampling, facts.eos_token_ids) if sampling.min_tokens else ()
        self.held_back = sorted(token for token in ends if 0 <= token < facts.vocab_size)
        allowed = sampling.allowed_token_ids
        self.mask = mask_of(allowed, facts.vocab_size) if allowed else None
        self.edited = bool(rule.penalised or bias or self.bad_words or self.held_back)

    def count(self, sequence: Sequence) -> None:
        if self.counts is not None and self.counted < len(sequence.token_ids):
            self.counts.add(sequence.token_ids[self.counted :])
            self.counted = len(sequence.token_ids)

    def forbidden(self, sequence: Sequence, draft: list[int], parents: list[int]) -> list[list[int]]:
        """By row: what may not follow the text and so much of the draft."""
        if parents:
            return self._forbidden_in_tree(sequence, draft, parents)
        rows = len(draft) + 1
        if not self.bad_words and not self.held_back:
            return [[]] * rows
        found = []
        held_rows = sequence.sampling.min_tokens - sequence.generated if self.held_back else 0
        longest = max(map(len, self.bad_words), default=1) - 1
        text = sequence.token_ids[-longest:] + draft if longest else draft
        for row in range(rows):
            end = len(text) - len(draft) + row
            ids = {word[-1] for word in self.bad_words if word[:-1] == text[max(0, end - len(word) + 1) : end]}
            found.append(sorted(ids.union(self.held_back) if row < held_rows else ids))
        return found


    def _forbidden_in_tree(self, sequence: Sequence, draft: list[int], parents: list[int]) -> list[list[int]]:
        """A row is the last one of the chain that leads to it."""
        chains: list[list[int]] = [[]]
        for token, parent in zip(draft, parents, strict=True):
            chains.append([*chains[parent + 1], token])
        return [self.forbidden(sequence, chain, [])[-1] for chain in chains]


def _rule(sequence: Sequence) -> Rule:
    sampling, verification = sequence.sampling, sequence.verification
    return Rule(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        strategy=getattr(ask, STRATEGIES[verification.strategy].code),
        accept=_ACCEPT[verification.accept_policy],
        max_candidate_len=verification.max_candidate_len,
        verify_window=verification.verify_window,
        typical_epsilon=verification.typical_epsilon,
        typical_delta=verification.typical_delta,
    )


def questions_of(work: Items[StepWork], facts: Facts) -> Questions:
    """Of work that all verifies, in order."""
    samplers = [_sampler(item.sequence, facts) for item in work]
    drafts = [item.draft for item in work]
    sizes = np.fromiter((len(draft) + 1 for draft in drafts), np.int32, len(drafts))
    begins = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    drafted = np.full(begins[-1], -1, np.int32)
    parents = np.arange(-1, begins[-1] - 1, dtype=np.int32)
    parents[begins[:-1]] = -1
    for begin, item in zip(begins.tolist(), work, strict=False):
        drafted[begin + 1 : begin + 1 + len(item.draft)] = item.draft
        if item.parents:
            parents[begin + 1 : begin + 1 + len(item.draft)] = np.array(item.parents, np.int32) + (begin + 1)
    rules = np.stack([sampler.words for sampler in samplers])
    starts = (item.start + len(item.tokens) - len(item.draft) for item in work)
    rules[:, ask.POSITION : ask.POSITION + 2] = np.fromiter(starts, np.int64, len(work))[:, None].view(np.int32)
    return Questions(
        rules=torch.from_numpy(rules),
        begins=torch.from_numpy(begins),
        drafted=torch.from_numpy(drafted),
        parents=torch.from_numpy(parents),
        edits=_edits(work, samplers) if any(sampler.edited for sampler in samplers) else None,
        masks=_masks(samplers, sizes) if any(sampler.mask is not None for sampler in samplers) else None,
    )


def _sampler(sequence: Sequence, facts: Facts) -> Sampler:
    sampler = sequence.sampler
    if not isinstance(sampler, Sampler):
        sampler = sequence.sampler = Sampler(sequence, facts)
    sampler.count(sequence)
    return sampler


def _edits(work: Items[StepWork], samplers: list[Sampler]) -> Edits:
    seen_ids = [_NO_IDS if each.counts is None else each.counts.ids for each in samplers]
    seen_counts = [_NO_IDS if each.counts is None else each.counts.counts for each in samplers]
    bias_ids = [each.bias_ids for each in samplers]
    forbidden = [ids for item, each in zip(work, samplers, strict=True)
                 for ids in each.forbidden(item.sequence, item.draft, item.parents)]  # fmt: skip
    return Edits(
        seen_begins=_begins(seen_ids),
        seen_ids=torch.from_numpy(np.concatenate([_NO_IDS, *seen_ids])),
        seen_counts=torch.from_numpy(np.concatenate([_NO_IDS, *seen_counts])),
        bias_begins=_begins(bias_ids),
        bias_ids=torch.from_numpy(np.concatenate([_NO_IDS, *bias_ids])),
        bias_values=torch.from_numpy(np.concatenate([_NO_VALUES, *(each.bias_values for each in samplers)])),
        forbidden_begins=_begins(forbidden),
        forbidden_ids=torch.tensor([token for ids in forbidden for token in ids], dtype=torch.int32),
    )


def _begins(lists: Items[Items[int] | np.ndarray]) -> torch.Tensor:
    sizes = np.fromiter(map(len, lists), np.int32, len(lists))
    return torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))


def _masks(samplers: list[Sampler], sizes: np.ndarray) -> Masks:
    masks = [sampler.mask for sampler in samplers if sampler.mask is not None]
    places = np.cumsum([sampler.mask is not None for sampler in samplers]) - 1
    of_sequence = np.where([sampler.mask is not None for sampler in samplers], places, -1)
    return Masks(torch.from_numpy(np.stack(masks)), torch.from_numpy(np.repeat(of_sequence, sizes).astype(np.int32)))
