"""The seam of verification strategies. Torch is a matter of the tensors passed in, not of this import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from kernels.verify.reference import Answer, Question


class Verifier(Protocol):
    # Whether the text is, token for token or in distribution, what it would be without drafts.
    lossless: bool

    def verify(self, target_logits: torch.Tensor, questions: Sequence[Question]) -> list[Answer]:
        """Answers in order; rows of the logits [R, V] belong to the questions in order, a draft's length + 1
        each. All randomness is a function of a question's seed and position. Changes nothing."""
