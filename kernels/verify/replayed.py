"""Verification as CUDA graphs, for logits that a step's graph leaves in a place of their own: one graph for each bucket
of rows and kind of rules. What is asked is put where the graphs read it, with one copy.

    begins | drafted | parents | rules ──one copy──▶ a graph ──▶ answers ──one copy──▶ host

A graph is made for as many sequences as rows; those that a batch doesn't have, have no rows. Scores that are edited,
masks, probabilities of drafts and other strategies than `target_match` are launched one by one (on_device.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

import torch

from kernels.device import Device, starts_of
from kernels.verify import fused
from kernels.verify.fused import Launches, Sizes, Workspace, pieces_of
from kernels.verify.questions import WORDS, Questions

# What graphs are captured for: greedy; sampled; sampled with top_k, top_p or min_p. Each answers those before it, too.
KINDS = (
    Launches(penalties=False, sampled=False, filters=False, judged=False),
    Launches(penalties=False, sampled=True, filters=False, judged=False),
    Launches(penalties=False, sampled=True, filters=True, judged=False),
)


class Replayed:
    def __init__(self, logits: torch.Tensor, buckets: Sequence[int], device: Device) -> None:
        """`logits` [R, V] of the largest bucket; those of a step are its first rows."""
        self._logits, self._buckets, self._device = logits, tuple(buckets), device
        most = self._buckets[-1]
        sizes = (most + 1, most, most, most * WORDS)
        starts = starts_of(sizes)
        # Two: a step's questions are asked while the step before it runs, behind whose graph its own were sent.
        self._stage = stage = device.stage(starts[-1], 2)
        self._rules_at = starts[3]
        self._places = [slice(start, start + size) for start, size in zip(starts, sizes, strict=False)]
        self._there = [stage.there[at] for at in self._places]
        self._told = torch.empty(sum(pieces_of(most, most)), dtype=torch.int32, device=logits.device)
        # The largest first: smaller ones fit into the memory it took.
        self._graphs = {
            (kind, rows): device.capture(partial(self._run, KINDS[kind], rows))
            for rows in reversed(self._buckets)
            for kind in range(len(KINDS))
        }

    def reads(self, logits: torch.Tensor) -> bool:
        return logits.data_ptr() == self._logits.data_ptr()

    def start(self, questions: Questions, needs: Launches) -> tuple[torch.Tensor, list[int]] | None:
        """Where a workspace's answers will be, and its pieces; None: no graph is for this."""
        if questions.edits is not None or questions.masks is not None or questions.draft_probs is not None:
            return None
        rows, sequences = questions.drafted.shape[0], questions.rules.shape[0]
        kind, place = _kind_of(needs), bisect_left(self._buckets, rows)
        if kind is None or place == len(self._buckets):
            return None
        bucket = self._buckets[place]
        self._stage.wait()
        begins, drafted, parents, rules = (self._stage.numbers[at] for at in self._places)
        begins[: sequences + 1] = questions.begins.numpy()
        begins[sequences + 1 : bucket + 1] = rows
        drafted[:rows] = questions.drafted.numpy()
        parents[:rows] = questions.parents.numpy()
        rules[: sequences * WORDS] = questions.rules.numpy().reshape(-1)
        self._stage.send(self._rules_at + sequences * WORDS)
        self._graphs[kind, bucket]()
        pieces = pieces_of(bucket, bucket)
        return self._told[: sum(pieces)], pieces

    def _run(self, needs: Launches, rows: int) -> None:
        begins, drafted, parents, rules = self._there
        questions = Questions(
            rules[: rows * WORDS].view(rows, WORDS), begins[: rows + 1], drafted[:rows], parents[:rows]
        )
        # Its memory is the graph's, and that of all graphs the same.
        work = Workspace(Sizes(rows, rows, 0, self._logits.dtype, self._logits.device), self._told)
        fused.verify(self._logits[:rows], questions, work, needs)


def _kind_of(needs: Launches) -> int | None:
    if needs.penalties or needs.judged:
        return None
    return 2 if needs.searched else int(needs.sampled)
