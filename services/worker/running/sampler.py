"""How each sequence of a step is sampled, as the arrays that kernels/verify takes.

The parameters of a request are converted once; the counts for its penalties and the text for its bad words grow with
each step. Knows no logits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from collections.abc import Sequence as Items

import numpy as np
import torch

from kernels.verify import questions as ask
from kernels.verify.questions import DraftProbs, Edits, Masks, Questions, Rule, mask_of
from services.api.sampling import Sampling, stop_ids
from services.api.strategies import STRATEGIES, Verification
from services.worker.grammar.compiled import Grammars
from services.worker.grammar.reasoning_limit import LimitedReasoning
from services.worker.grammar.rows import GrammarRows, ListRows, Rows
from services.worker.grammar.state import GrammarState, RowMasks
from services.worker.running.runner import Facts
from services.worker.running.work import NewSequence, SequenceWork

_ACCEPT = {"normal": ask.NORMAL, "accept_all": ask.ALL, "reject_all": ask.NONE}
NO_MASKS: Mapping[int, RowMasks | None] = {}
_NO_MASK = np.int32(-1)
_NO_IDS = np.empty(0, np.int32)
_NO_VALUES = np.empty(0, np.float32)


class Counts:
    """How often each id was generated (0: in the prompt only), in growing arrays."""

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
    """The sampling of one sequence."""

    __slots__ = ("accepts_all", "bad_words", "bias_ids", "bias_values", "counts", "edited", "first_end", "follows",
                 "grammar", "held_back", "logprobs", "mask", "masked", "masked_late", "prompt_logprobs", "reasoning",
                 "rows", "text", "words")  # fmt: skip

    def __init__(self, new: NewSequence, facts: Facts, grammars: Grammars | None = None) -> None:
        sampling = new.sampling
        rule = _rule(new)
        self.words = rule.words()
        # How many of the most probable ids are reported with each token; -1: no log-probabilities.
        self.logprobs = sampling.logprobs
        self.prompt_logprobs = sampling.prompt_logprobs
        self.counts = Counts(new.text[: new.prompt_tokens]) if rule.penalised else None
        self.accepts_all = new.verification.accept_policy == "accept_all"
        allowed = sampling.allowed_token_ids
        self.mask = mask_of(allowed, facts.vocab_size) if allowed else None
        # Ids that end the text, and the first position at which they are allowed. A grammar holds them back itself.
        held = sampling.min_tokens and not sampling.grammar
        ends = stop_ids(sampling, facts.eos_token_ids) if held else ()
        self.held_back = sorted(token for token in ends if 0 <= token < facts.vocab_size)
        self.first_end = new.prompt_tokens + sampling.min_tokens
        # The masks of its rows, where `mask` isn't enough. Those of a grammar leave out bad words and ends, too.
        self.rows: Rows | None = None
        self.grammar: GrammarState | None = None
        if sampling.grammar:
            assert grammars is not None, "the actor refuses grammars that aren't served"
            self.rows = rows = GrammarRows(sampling, grammars, self.first_end, self.mask)
            self.grammar = rows.state
        elif self.mask is not None and (sampling.bad_words or self.held_back):
            self.rows = ListRows(sampling, facts.vocab_size, self.mask)
        self.reasoning: LimitedReasoning | None = None
        if sampling.reasoning is not None:
            assert grammars is not None, "the actor refuses limits that aren't served"
            self.reasoning = LimitedReasoning(sampling.reasoning, grammars.vocabulary)
        bias = dict(sampling.logit_bias)
        self.bad_words = sampling.bad_words
        if self.grammar is None:
            bias |= {word[0]: -math.inf for word in sampling.bad_words if len(word) == 1}
            self.bad_words = [word for word in sampling.bad_words if len(word) > 1]
        self.bias_ids = np.array(list(bias), np.int32)
        self.bias_values = np.array(list(bias.values()), np.float32)
        # The text that bad words are compared with.
        self.text: list[int] = []
        self.edited = bool(rule.penalised or bias or self.held_back or (self.bad_words and self.grammar is None))
        # Masks that are computed while the model is; any mask; and what a step changes.
        self.masked_late = self.rows is not None
        self.masked = self.masked_late or self.mask is not None or self.reasoning is not None
        self.follows = bool(self.counts or self.bad_words or self.grammar or self.reasoning)
        if self.bad_words:
            self.text += new.text[: new.prompt_tokens]
        self.commit(new.text[new.prompt_tokens :])

    def commit(self, tokens: list[int]) -> None:
        """The text continues with these tokens."""
        if self.counts is not None:
            self.counts.add(tokens)
        if self.bad_words:
            self.text += tokens
        if self.grammar is not None:
            self.grammar.commit(tokens)
        if self.reasoning is not None:
            self.reasoning.commit(tokens)

    def forbidden(self, position: int, draft: list[int], parents: list[int]) -> list[list[int]]:
        """By row: the ids that may not follow the text, which ends before `position`, and the draft up to that row."""
        if parents:
            return self._forbidden_in_tree(position, draft, parents)
        rows = len(draft) + 1
        if not self.bad_words and not self.held_back:
            return [[]] * rows
        found = []
        held_rows = self.first_end - position if self.held_back else 0
        longest = max(map(len, self.bad_words), default=1) - 1
        text = (self.text[-longest:] if longest else []) + draft
        for row in range(rows):
            end = len(text) - len(draft) + row
            ids = {word[-1] for word in self.bad_words if word[:-1] == text[max(0, end - len(word) + 1) : end]}
            found.append(sorted(ids.union(self.held_back) if row < held_rows else ids))
        return found

    def _forbidden_in_tree(self, position: int, draft: list[int], parents: list[int]) -> list[list[int]]:
        """Each row of a tree is the last row of a chain."""
        chains: list[list[int]] = [[]]
        for token, parent in zip(draft, parents, strict=True):
            chains.append([*chains[parent + 1], token])
        return [self.forbidden(position, chain, [])[-1] for chain in chains]


def _names(holder: type) -> set[str]:
    return {each.name for each in dataclasses.fields(holder)}


# What kernels read as it is sent: a parameter in both is passed on without a line here.
_OF_SAMPLING = tuple(_names(Rule) & _names(Sampling))
_OF_VERIFICATION = tuple(_names(Rule) & _names(Verification) - {"strategy"})


def _rule(new: NewSequence) -> Rule:
    verification = new.verification
    return Rule(
        **{name: getattr(new.sampling, name) for name in _OF_SAMPLING},
        **{name: getattr(verification, name) for name in _OF_VERIFICATION},
        strategy=getattr(ask, STRATEGIES[verification.strategy].code),
        accept=_ACCEPT[verification.accept_policy],
    )


def questions_of(
    items: Items[SequenceWork],
    samplers: list[Sampler],
    vocab_size: int,
    masked: Mapping[int, RowMasks | None] = NO_MASKS,
) -> Questions:
    """The questions for these items, which are all verified, each with its sampler. `masked`: by sequence that has
    `rows`."""
    # Most steps have none.
    any_masks = any(sampler.masked for sampler in samplers)
    if any_masks:
        masked = _to_limits(items, samplers, masked)
    lengths = [len(item.draft.tokens) for item in items]
    drafts = any(lengths)
    begins = np.arange(len(items) + 1, dtype=np.int32)
    if drafts:
        begins[1:] += np.cumsum(lengths, dtype=np.int32)
    drafted = np.full(begins[-1], -1, np.int32)
    parents = np.arange(-1, begins[-1] - 1, dtype=np.int32)
    parents[begins[:-1]] = -1
    for begin, item, sampler in zip(begins.tolist(), items, samplers, strict=False) if drafts else ():
        draft = item.draft
        if not draft.tokens:
            continue
        drafted[begin + 1 : begin + 1 + len(draft.tokens)] = draft.tokens
        if draft.parents:
            parents[begin + 1 : begin + 1 + len(draft.tokens)] = np.array(draft.parents, np.int32) + (begin + 1)
        if (rows := masked.get(item.sequence_id)) is not None and (draft.probs is None or sampler.accepts_all):
            # No policy accepts what is no id. A token drawn from probabilities stays where it is verified: its own is
            # 0, and what is sampled in its place depends on it.
            drafted[begin + 1 : begin + 1 + len(draft.tokens)][~rows.follows] = vocab_size
    rules = np.concatenate([sampler.words for sampler in samplers]).reshape(-1, ask.WORDS)
    positions = [item.start + len(item.tokens) for item in items]
    rules.view(ask.RULE)["position"][:, 0] = positions
    return Questions(
        rules=torch.from_numpy(rules),
        begins=torch.from_numpy(begins),
        drafted=torch.from_numpy(drafted),
        parents=torch.from_numpy(parents),
        edits=_edits(items, samplers) if any(sampler.edited for sampler in samplers) else None,
        masks=_masks(items, samplers, masked) if any_masks else None,
        draft_probs=_draft_probs(items, begins, vocab_size) if drafts else None,
    )


def _to_limits(
    items: Items[SequenceWork], samplers: list[Sampler], masked: Mapping[int, RowMasks | None]
) -> Mapping[int, RowMasks | None]:
    """Also the masks of sequences whose reasoning is at its limit, which comes before a list of allowed ids, and behind
    a grammar."""
    found = dict(masked)
    for item, sampler in zip(items, samplers, strict=True):
        if sampler.reasoning is None:
            continue
        grammar = masked[item.sequence_id] if sampler.grammar is not None else None
        if sampler.grammar is not None and grammar is None:
            continue  # it has failed
        draft = item.draft
        masks = sampler.reasoning.masks(draft.tokens, draft.parents, grammar, sampler.mask)
        if masks is not None:
            found[item.sequence_id] = masks
    return found


def _draft_probs(items: Items[SequenceWork], begins: np.ndarray, vocab_size: int) -> DraftProbs | None:
    """Probabilities of a wrong shape, or of a tree, are ignored: the draft counts as certain, which is lossless too."""
    given = [
        (begin, torch.as_tensor(item.draft.probs, dtype=torch.float32))
        for begin, item in zip(begins.tolist(), items, strict=False)
        if item.draft.probs is not None and not item.draft.parents
        and tuple(item.draft.probs.shape) == (len(item.draft.tokens), vocab_size)
    ]  # fmt: skip
    if not given:
        return None
    of_row = np.full(begins[-1], -1, np.int32)
    at = 0
    for begin, probs in given:
        of_row[begin + 1 : begin + 1 + len(probs)] = np.arange(at, at + len(probs))
        at += len(probs)
    return DraftProbs(torch.cat([probs for _, probs in given]).contiguous(), torch.from_numpy(of_row))


def _edits(items: Items[SequenceWork], samplers: list[Sampler]) -> Edits:
    seen_ids = [_NO_IDS if each.counts is None else each.counts.ids for each in samplers]
    seen_counts = [_NO_IDS if each.counts is None else each.counts.counts for each in samplers]
    bias_ids = [each.bias_ids for each in samplers]
    forbidden: list[list[int]] = []
    for item, each in zip(items, samplers, strict=True):
        if each.grammar is None:
            forbidden += each.forbidden(item.position, item.draft.tokens, item.draft.parents)
        else:
            forbidden += [[]] * (len(item.draft.tokens) + 1)
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


def _masks(items: Items[SequenceWork], samplers: list[Sampler], masked: Mapping[int, RowMasks | None]) -> Masks | None:
    """A mask for each row that has its own, one for all rows of other sequences that have one."""
    bits: list[np.ndarray] = []
    of_row: list[np.ndarray] = []
    count = 0
    for item, sampler in zip(items, samplers, strict=True):
        rows = len(item.draft.tokens) + 1
        if (found := masked.get(item.sequence_id)) is not None:
            of_row.append(np.where(found.known, np.arange(count, count + rows, dtype=np.int32), _NO_MASK))
            bits.append(found.bits.view(np.int32))
            count += rows
        elif sampler.mask is not None and sampler.grammar is None:
            of_row.append(np.full(rows, count, np.int32))
            bits.append(sampler.mask[None])
            count += 1
        else:
            of_row.append(np.full(rows, _NO_MASK))
    return Masks(torch.from_numpy(np.concatenate(bits)), torch.from_numpy(np.concatenate(of_row))) if bits else None
