"""The seam between a step and what judges its drafts: plain torch, compiled loops, or Triton. All give the same
integers (kernels/verify/README.md)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    import torch

    from kernels.verify.questions import Answers, Questions

# Executor (models/choose.py) -> module of kernels/verify.
OF_EXECUTOR = {"plain": "reference", "compiled": "cpu", "triton": "reference"}


class Verifier(Protocol):
    def verify(self, logits: torch.Tensor, questions: Questions) -> Answers:
        """All strategies, chains and trees, in one batch. `logits` [R, V] are as before afterwards. All randomness is
        a function of seeds and positions."""
        ...

    def logprobs(
        self, logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, count: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The model's own log-probabilities: of `tokens` in `rows`, and the `count` likeliest ids there with theirs."""
        ...


def verifier(name: str) -> Verifier:
    return cast(Verifier, importlib.import_module(f"kernels.verify.{name}"))
