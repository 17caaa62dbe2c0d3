"""A drafted token stands while it is the likeliest one. For requests at temperature 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from kernels.verify.reference import Answer, Question


class Greedy:
    lossless = True

    def verify(self, target_logits: torch.Tensor, questions: Sequence[Question]) -> list[Answer]:
        from kernels.verify.reference import verify

        assert all(question.rule.greedy for question in questions), "policy.py gives sampled requests to others"
        return verify(target_logits, questions)
