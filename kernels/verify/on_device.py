"""The Triton verifier as a server's step uses it: questions come as arrays of the host, answers go back to it.

    rules | begins | drafted | parents | edits … ──one copy, pinned──▶ kernels ──▶ answers ──one copy──▶ host

The copy back is the one place where a step waits for the device: whoever has something to do until then is told how
to see that the kernels are done. Logits stay where they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields

import numpy as np
import torch

from kernels.launch import ceil_div, power_of_two
from kernels.verify import fused
from kernels.verify.fused import Needs, Sizes, Workspace
from kernels.verify.questions import (
    ACCEPT,
    FLOOR,
    FREQUENCY,
    INVERSE,
    LONGEST_DRAFT,
    MATCH,
    NORMAL,
    PRESENCE,
    REPETITION,
    STRATEGY,
    TOP_K,
    TOP_P,
    Answers,
    Edits,
    Masks,
    Questions,
)
from kernels.waiting import Waiting

# Places begin at multiples of 16 bytes: kernels are compiled for that.
_ALIGN = 4
# Memory is asked for in steps, so that it isn't asked for often.
_ROWS, _ENTRIES, _WORDS = 8, 4096, 16384


class OnDevice:
    """`verify` and `logprobs` of reference.py's signatures, for logits on one device."""

    def __init__(self) -> None:
        self._work: dict[int, Workspace] = {}
        self._host = torch.empty(0, dtype=torch.int32)
        self._there = torch.empty(0, dtype=torch.int32)

    def verify(self, logits: torch.Tensor, questions: Questions, waiting: Waiting | None = None) -> Answers:
        assert questions.draft_probs is None, "who draws drafts has their probabilities on the device already"
        sent = self._send(questions, logits.device)
        work = self._workspace(logits, questions)
        answers = fused.verify(logits, sent, work, needs_of(questions))
        rows, sequences = questions.drafted.shape[0], questions.rules.shape[0]
        told = torch.cat([answers.tokens, answers.rows, answers.accepted, answers.failed])
        if waiting is not None:
            waiting(_end_of_all(logits.device))
        return Answers(*told.cpu().split([rows, rows, sequences, sequences]))

    def logprobs(
        self, logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, count: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        there = torch.stack([rows, tokens]).to(logits.device, torch.int32)
        own, ids, values = fused.logprobs(logits, there[0], there[1], count)
        return own.cpu(), ids.cpu(), values.cpu()

    def _send(self, questions: Questions, device: torch.device) -> Questions:
        """Every array of the questions, in one piece."""
        arrays = list(_arrays(questions))
        starts = np.cumsum([0, *(ceil_div(array.numel(), _ALIGN) * _ALIGN for array in arrays)]).tolist()
        if starts[-1] > self._host.numel() or self._there.device != device:
            words = ceil_div(starts[-1], _WORDS) * _WORDS
            self._host = torch.empty(words, dtype=torch.int32, pin_memory=device.type == "cuda")
            self._there = torch.empty(words, dtype=torch.int32, device=device)
        host = self._host.numpy()
        for array, start in zip(arrays, starts, strict=False):
            host[start : start + array.numel()] = array.reshape(-1).view(torch.int32).numpy()
        # The last step's answers have been read, and with them was over what read the last questions.
        self._there[: starts[-1]].copy_(self._host[: starts[-1]], non_blocking=True)
        there = (
            self._there[start : start + array.numel()].view(array.dtype).view(array.shape)
            for array, start in zip(arrays, starts, strict=False)
        )
        return Questions(
            next(there), next(there), next(there), next(there),
            Edits(*(next(there) for _ in fields(Edits))) if questions.edits is not None else None,
            Masks(next(there), next(there)) if questions.masks is not None else None,
        )  # fmt: skip

    def _workspace(self, logits: torch.Tensor, questions: Questions) -> Workspace:
        """For about as many rows: how far a row is divided among programs goes by that."""
        rows = power_of_two(questions.drafted.shape[0], _ROWS)
        entries, kept = _entries(questions), self._work.get(rows)
        known = kept is not None and (kept.sizes.dtype, kept.sizes.device) == (logits.dtype, logits.device)
        if kept is None or not known or kept.sizes.entries < entries:
            sizes = Sizes(rows, rows, ceil_div(entries, _ENTRIES) * _ENTRIES, logits.dtype, logits.device)
            kept = self._work[rows] = Workspace(sizes)
        return kept


def _end_of_all(device: torch.device) -> Callable[[], bool]:
    """Tells whether all that was launched up to here has ended."""
    if device.type != "cuda":
        # It had when the launch came back.
        return lambda: True
    end = torch.cuda.Event()
    end.record(torch.cuda.current_stream(device))
    return end.query


def _arrays(questions: Questions) -> list[torch.Tensor]:
    arrays = [questions.rules, questions.begins, questions.drafted, questions.parents]
    if questions.edits is not None:
        arrays += [getattr(questions.edits, each.name) for each in fields(Edits)]
    if questions.masks is not None:
        arrays += [questions.masks.bits, questions.masks.of_row]
    return arrays


def _entries(questions: Questions) -> int:
    """How many scores are edited at most, of all rows."""
    edits = questions.edits
    begins = questions.begins.numpy()
    rows = np.diff(begins)
    # A row counts the drafted tokens it stands behind.
    entries = int((rows * np.minimum(rows, LONGEST_DRAFT)).sum())
    if edits is not None:
        listed = np.diff(edits.seen_begins.numpy()) + np.diff(edits.bias_begins.numpy())
        entries += int((rows * listed).sum()) + edits.forbidden_ids.numel()
    return entries


def needs_of(questions: Questions) -> Needs:
    """What the rules, which only the host can look at without waiting, need of the launches."""
    words = questions.rules.numpy()
    floats = words.view(np.float32)
    sampled = floats[:, INVERSE] != 0.0
    filters = (words[:, TOP_K] > 0) | (floats[:, TOP_P] < 1.0) | (floats[:, FLOOR] > -math.inf)
    judged = (words[:, STRATEGY] != MATCH) & sampled | (words[:, ACCEPT] != NORMAL)
    penalties = (floats[:, REPETITION] != 1.0) | (floats[:, PRESENCE] != 0.0) | (floats[:, FREQUENCY] != 0.0)
    return Needs(
        penalties=bool(penalties.any()),
        sampled=bool(sampled.any()),
        filters=bool((filters & sampled).any()),
        judged=bool(judged.any()),
    )
