"""The Triton verifier for a server's step: questions are arrays on the host, answers are copied back to it.

    rules | begins | drafted | parents | edits … ──one copy, staged──▶ kernels ──▶ answers ──one copy──▶ host

Probabilities of drafts that are on the device already, because a drafter computed them there, are read in place;
those on the host travel with the rest. The copy back is the one place where a step waits for the device. Logits stay
on the device. Those of a step's graph are verified by graphs, too (replayed.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

import numpy as np
import torch

from kernels.device import Device, Fetched, Stage, device_of, starts_of
from kernels.launch import ceil_div, only_compiling, power_of_two
from kernels.verify import fused
from kernels.verify.fused import Launches, Sizes, Workspace
from kernels.verify.questions import (
    ALL,
    LONGEST_DRAFT,
    MATCH,
    NORMAL,
    REJECTION,
    Answers,
    Asked,
    DraftProbs,
    Edits,
    Masks,
    Questions,
    Rule,
    gather,
)
from kernels.verify.replayed import Replayed

# Memory is allocated in steps of these sizes, so that it is allocated seldom.
_ROWS, _ENTRIES, _WORDS = 8, 4096, 16384


@dataclass(frozen=True, slots=True)
class Started:
    """Answers under way."""

    there: torch.Tensor  # answers, the tokens first
    told: Fetched
    pieces: list[int]  # a workspace's
    rows: int
    sequences: int

    def wait(self) -> Answers:
        tokens, of_rows, accepted, failed = self.told.wait().split(self.pieces)
        return Answers(
            tokens[: self.rows], of_rows[: self.rows], accepted[: self.sequences], failed[: self.sequences]
        )


class OnDevice:
    """`verify` and `logprobs` of reference.py's signatures, for logits on one device."""

    def __init__(self) -> None:
        self._replayed: Replayed | None = None
        self._work: dict[int, Workspace] = {}
        # Known with the first logits.
        self._device: Device | None = None
        self._stage: Stage | None = None

    def verify(self, logits: torch.Tensor, questions: Questions) -> Answers:
        return self.start(logits, questions).wait()

    def start(self, logits: torch.Tensor, questions: Questions) -> Started:
        """`verify` without waiting for the device."""
        needs = needs_of(questions)
        if not needs.judged:
            # No rule reads them.
            questions = replace(questions, draft_probs=None)
        rows, sequences = questions.drafted.shape[0], questions.rules.shape[0]
        if self._replayed is not None and self._replayed.reads(logits):
            replayed = self._replayed.start(questions, needs)
            if replayed is not None:
                there, pieces = replayed
                return Started(there, self._on(logits.device).fetch(there), pieces, rows, sequences)
        sent = self._send(questions, logits.device)
        work = self._workspace(logits, questions)
        fused.verify(logits, sent, work, needs)
        return Started(work.told, self._on(logits.device).fetch(work.told), work.pieces, rows, sequences)

    def follow(self, logits: torch.Tensor, buckets: Sequence[int]) -> None:
        """Capture graphs for these logits, which stay in their place: [R, V], R the last of `buckets`."""
        self._replayed = Replayed(logits, buckets, self._on(logits.device))

    def logprobs(
        self, logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, count: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        asked = torch.stack([rows, tokens]).to(logits.device, torch.int32)
        # Each at an address of its own: the second half of one tensor begins anywhere.
        answers = fused.logprobs(logits, asked[0].clone(), asked[1].clone(), count)
        own, ids, values = [self._on(logits.device).fetch(each) for each in answers]
        return own.wait(), ids.wait(), values.wait()

    def prepare(self, logits: torch.Tensor) -> None:
        """Compile every kernel that questions can need; nothing is computed. `logits` [2, V] of any values."""
        with only_compiling():
            for questions in _every_kind(logits.shape[1]):
                self.verify(logits, questions)
            first = torch.zeros(1, dtype=torch.int64)
            self.logprobs(logits, first, first, 1)

    def _on(self, device: torch.device) -> Device:
        if self._device is None:
            self._device = device_of(device)
        return self._device

    def _send(self, questions: Questions, device: torch.device) -> Questions:
        """Every array of the questions that is on the host, in one piece."""
        arrays = list(_arrays(questions))
        starts = starts_of(array.numel() for array in arrays)
        if self._stage is None or starts[-1] > len(self._stage.numbers):
            self._stage = self._on(device).stage(ceil_div(starts[-1], _WORDS) * _WORDS)
        self._stage.wait()
        for array, start in zip(arrays, starts, strict=False):
            self._stage.numbers[start : start + array.numel()] = array.reshape(-1).view(torch.int32).numpy()
        self._stage.send(starts[-1])
        words = self._stage.there
        there = (
            words[start : start + array.numel()].view(array.dtype).view(array.shape)
            for array, start in zip(arrays, starts, strict=False)
        )
        return Questions(
            next(there), next(there), next(there), next(there),
            Edits(*(next(there) for _ in fields(Edits))) if questions.edits is not None else None,
            Masks(next(there), next(there)) if questions.masks is not None else None,
            _sent_probs(questions.draft_probs, there),
        )  # fmt: skip

    def _workspace(self, logits: torch.Tensor, questions: Questions) -> Workspace:
        """One for about as many rows: the number of programs for a row depends on that."""
        rows = power_of_two(questions.drafted.shape[0], _ROWS)
        entries, kept = _entries(questions), self._work.get(rows)
        known = kept is not None and (kept.sizes.dtype, kept.sizes.device) == (logits.dtype, logits.device)
        if kept is None or not known or kept.sizes.entries < entries:
            sizes = Sizes(rows, rows, ceil_div(entries, _ENTRIES) * _ENTRIES, logits.dtype, logits.device)
            kept = self._work[rows] = Workspace(sizes)
        return kept


def _every_kind(vocabulary: int) -> Iterator[Questions]:
    """The list of all that the kernels of verify are compiled for: whether scores are edited, ids masked, drafts have
    probabilities, and any rule samples. Nothing else of a batch is a constant of a kernel, and all of its launches are
    among those of these (kernels/verify/fused.py)."""
    for edited, masked, probable, sampled in product((False, True), repeat=4):
        rule = Rule(temperature=float(sampled), top_p=0.9, strategy=REJECTION, accept=ALL)
        asked = Asked(
            rule, draft=[0], bias={0: 1.0} if edited else None, allowed=[0] if masked else None,
            draft_probs=[torch.full([vocabulary], 1.0 / vocabulary)] if probable else (),
        )  # fmt: skip
        yield gather([asked], vocabulary)


def _arrays(questions: Questions) -> list[torch.Tensor]:
    arrays = [questions.rules, questions.begins, questions.drafted, questions.parents]
    if questions.edits is not None:
        arrays += [getattr(questions.edits, each.name) for each in fields(Edits)]
    if questions.masks is not None:
        arrays += [questions.masks.bits, questions.masks.of_row]
    if questions.draft_probs is not None:
        arrays += [each for each in (questions.draft_probs.probs, questions.draft_probs.of_row) if _on_host(each)]
    return arrays


def _sent_probs(given: DraftProbs | None, there: Iterator[torch.Tensor]) -> DraftProbs | None:
    """`there`: what has been sent, of the arrays that were on the host."""
    if given is None:
        return None
    probs, of_row = (next(there) if _on_host(each) else each for each in (given.probs, given.of_row))
    return DraftProbs(probs, of_row)


def _on_host(array: torch.Tensor) -> bool:
    return array.device.type == "cpu"


def _entries(questions: Questions) -> int:
    """Upper bound of the number of edited scores of all rows."""
    edits = questions.edits
    begins = questions.begins.numpy()
    rows = np.diff(begins)
    # A row counts the draft tokens on its path.
    entries = int((rows * np.minimum(rows, LONGEST_DRAFT)).sum())
    if edits is not None:
        listed = np.diff(edits.seen_begins.numpy()) + np.diff(edits.bias_begins.numpy())
        entries += int((rows * listed).sum()) + edits.forbidden_ids.numel()
    return entries


def needs_of(questions: Questions) -> Launches:
    """Which launches the rules need. They are read on the host: reading them on the device would wait for it."""
    rules = questions.records
    sampled = rules["inverse"] != 0.0
    judged = rules["accept"] != NORMAL
    penalties = (rules["repetition"] != 1.0) | (rules["presence"] != 0.0) | (rules["frequency"] != 0.0)
    if not sampled.any():
        return Launches(bool(penalties.any()), sampled=False, filters=False, judged=bool(judged.any()), long=False)
    filters = (rules["top_k"] > 0) | (rules["top_p"] < 1.0) | (rules["floor"] > -math.inf)
    # Ids that a mask allows may lie together, and then more than k are collected.
    long = (rules["top_k"] > fused.SMALL_K) | (rules["top_k"] <= 0) & (rules["top_p"] < 1.0)
    long |= filters & (questions.masks is not None)
    judged |= (rules["strategy"] != MATCH) & sampled
    return Launches(
        penalties=bool(penalties.any()),
        sampled=True,
        filters=bool((filters & sampled).any()),
        judged=bool(judged.any()),
        long=bool((long & sampled).any()),
    )
