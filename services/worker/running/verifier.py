"""The seam between a step and what judges its drafts: plain torch, compiled loops, or Triton. All give the same
integers (kernels/verify/README.md)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    import torch

    from kernels.verify.questions import Answers, Questions
    from kernels.waiting import Waiting


class Verifier(Protocol):
    def verify(self, logits: torch.Tensor, questions: Questions, waiting: Waiting | None = None) -> Answers:
        """All strategies, chains and trees, in one batch. `logits` [R, V] are as before afterwards. All randomness is
        a function of seeds and positions. Who waits for a device calls `waiting` once, when all is on its way."""
        ...

    def logprobs(
        self, logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, count: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The model's own log-probabilities: of `tokens` in `rows`, and the `count` likeliest ids there with theirs."""
        ...


def verifier(executor: str) -> Verifier:
    """Who judges what this executor (models/choose.py) computes, where it computes it."""
    if executor == "triton":
        from kernels.verify.on_device import OnDevice

        return OnDevice()
    module = {"plain": "reference", "compiled": "cpu"}[executor]
    return cast(Verifier, importlib.import_module(f"kernels.verify.{module}"))
