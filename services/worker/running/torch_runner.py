"""The runner of a real model: one forward over all rows of a step, then verification of the drafts.

Knows torch, and neither strategies nor scheduling: sampler.py says what is asked of the logits, kernels/verify what
they answer.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Protocol

import torch

from kernels.verify.questions import Answers
from kernels.waiting import Waiting
from services.api.messages import TokenLogprob, TopToken
from services.worker.running.runner import Facts, Meanwhile, StepWork, Verdict, nothing_meanwhile
from services.worker.running.sampler import questions_of
from services.worker.running.torch_model import ForwardRows
from services.worker.running.verifier import Verifier

NOT_FINITE = "the model gave logits that are not finite, or none of its tokens is allowed"


class Model(Protocol):
    """What is needed of services/worker/running/torch_model.py."""

    @property
    def facts(self) -> Facts: ...
    @property
    def verifier(self) -> Verifier: ...
    @property
    def elsewhere(self) -> bool:
        """Whether `forward` returns before anything is computed."""
        ...
    def forward(self, rows: Items[ForwardRows]) -> torch.Tensor: ...
    def copy_page(self, source: int, target: int) -> None: ...
    def keep(self, paths: Items[tuple[int, list[int]]]) -> None: ...


class TorchRunner:
    def __init__(self, model: Model) -> None:
        self.facts = model.facts
        self._model = model

    def step(self, work: Items[StepWork], meanwhile: Meanwhile = nothing_meanwhile) -> list[Verdict | None]:
        elsewhere = self._model.elsewhere
        waiting = None
        if not elsewhere:
            meanwhile(False)
        with torch.inference_mode():
            logits = self._model.forward([_rows(item) for item in work])
            if elsewhere:
                # Judging waits for the device at its end, and its kernels stand behind those of the forward anyway.
                waiting = meanwhile(True)
            return self._verify(work, logits, waiting)

    def copy_page(self, source: int, target: int) -> None:
        with torch.inference_mode():
            self._model.copy_page(source, target)

    def _verify(self, work: Items[StepWork], logits: torch.Tensor, waiting: Waiting | None) -> list[Verdict | None]:
        """
        work        a     b (chunk)   c       d
        logits    a0 a1      -      c0 c1 c2  d0
        """
        judged = [item for item in work if item.verify]
        if not judged:
            return [None] * len(work)
        questions = questions_of(judged, self.facts)
        answers = self._model.verifier.verify(logits, questions, waiting)
        begins: list[int] = questions.begins.tolist()
        verdicts = iter(_verdicts(answers, begins))
        found = [next(verdicts) if item.verify else None for item in work]
        if any(item.parents for item in judged):
            self._keep(work, answers, begins)
        if any(item.sequence.sampling.logprobs >= 0 for item in judged):
            self._add_logprobs(logits, work, found, answers, begins)
        return found

    def _keep(self, work: Items[StepWork], answers: Answers, begins: list[int]) -> None:
        """What stands of a tree goes where a chain's keys and values are."""
        judged = (index for index, item in enumerate(work) if item.verify)
        accepted, rows = answers.accepted.tolist(), answers.rows.tolist()
        self._model.keep([
            (index, [row - begin for row in rows[begin + 1 : begin + 1 + count]])
            for index, begin, count in zip(judged, begins, accepted, strict=False)
            if work[index].parents
        ])

    def _add_logprobs(
        self,
        logits: torch.Tensor,
        work: Items[StepWork],
        verdicts: list[Verdict | None],
        answers: Answers,
        begins: list[int],
    ) -> None:
        wanted: list[tuple[Verdict, int]] = []
        places: list[int] = []
        judged = ((item, verdict) for item, verdict in zip(work, verdicts, strict=True) if verdict is not None)
        for (item, verdict), begin in zip(judged, begins, strict=False):
            if item.sequence.sampling.logprobs >= 0 and verdict.tokens:
                wanted.append((verdict, item.sequence.sampling.logprobs))
                places += range(begin, begin + len(verdict.tokens))
        if not wanted:
            return
        rows, tokens = answers.rows[places], answers.tokens[places]
        most = max(count for _, count in wanted)
        own, ids, values = (each.tolist() for each in self._model.verifier.logprobs(logits, rows, tokens, most))
        at = 0
        for verdict, count in wanted:
            verdict.logprobs = []
            for place in range(at, at + len(verdict.tokens)):
                top = zip(ids[place][:count], values[place][:count], strict=True)
                verdict.logprobs.append(
                    TokenLogprob(logprob=own[place], top=[TopToken(id=i, logprob=value) for i, value in top])
                )
            at += len(verdict.tokens)


def _verdicts(answers: Answers, begins: list[int]) -> list[Verdict]:
    tokens, accepted, failed = answers.tokens.tolist(), answers.accepted.tolist(), answers.failed.tolist()
    return [
        Verdict([], 0, failure=NOT_FINITE)
        if failed[index]
        else Verdict(tokens[begin : begin + accepted[index] + 1], accepted[index])
        for index, begin in enumerate(begins[:-1])
    ]


def _rows(item: StepWork) -> ForwardRows:
    wanted_from = len(item.tokens) - len(item.draft) - 1 if item.verify else len(item.tokens)
    return ForwardRows(item.tokens, item.start, item.sequence.pages, wanted_from, item.parents)
