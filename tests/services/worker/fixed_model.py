"""A model whose logits are made by hand, for running/torch_runner.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import torch

from kernels.verify.questions import Answers, Questions
from models.batch import Stretch
from models.executor import Output
from services.worker.running.mock import BRANCH_PAGES
from services.worker.running.runner import Facts
from services.worker.running.verifier import UnderWay, verifier


class FixedModel:
    """Says 7, 8, 7, 8, ... and NaN behind the token 13. Its features of a row are its token and position."""

    def __init__(self, executor: str = "compiled", *, elsewhere: bool = False, taps: bool = False) -> None:
        """With `elsewhere`, as on a GPU, `forward` and the verifier's kernels have only begun when they return. `notes`
        says in which order they were called."""
        self.facts = Facts(100, 64, (0,), 4, 32, branch_pages=BRANCH_PAGES)
        self.elsewhere = self.feeds = elsewhere
        self.verifier = self
        self.notes: list[str] = []
        self.kept: list[tuple[int, list[int]]] = []
        self._taps = taps
        self._judge = verifier(executor)
        self.logprobs = self._judge.logprobs

    def forward(self, rows: Sequence[Stretch], given: torch.Tensor | None = None, fed: int = 0) -> Output:
        self.notes.append("forward" if given is None else f"forward, {fed} fed")
        if given is not None:
            first = [replace(row, tokens=given[list(row.tokens)].tolist()) for row in rows[:fed]]
            rows = [*first, *rows[fed:]]
        wanted = [token for row in rows for token in row.tokens[row.logits_from :]]
        logits = torch.zeros(len(wanted), 100)
        for place, token in enumerate(wanted):
            logits[place, 8 if token == 7 else 7] = 9.0
            if token == 13:
                logits[place, 50] = float("nan")
        features = [[token, row.start + at] for row in rows for at, token in enumerate(row.tokens)]
        return Output(logits, torch.tensor(features, dtype=torch.float32) if self._taps else None)

    def verify(self, logits: torch.Tensor, questions: Questions) -> Answers:
        self.notes.append("verify")
        return self._judge.verify(logits, questions)

    def start(self, logits: torch.Tensor, questions: Questions) -> UnderWay:
        answers = self.verify(logits, questions)
        return SimpleNamespace(wait=lambda: answers, there=answers.tokens)

    def keep(self, paths: Sequence[tuple[int, list[int]]]) -> None:
        self.kept += paths

    def copy_page(self, source: int, target: int) -> None:
        self.notes.append(f"copy {source} {target}")
