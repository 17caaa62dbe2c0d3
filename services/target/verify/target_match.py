"""A drafted token stands while it is the one the target itself samples at that position.

What is emitted is always the target's own sample, so the text is what it would be without drafts, and the
request's seed is honoured (kernels/verify/README.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from kernels.verify.reference import Answer, Question


class TargetMatch:
    lossless = True

    def verify(self, target_logits: torch.Tensor, questions: Sequence[Question]) -> list[Answer]:
        from kernels.verify.reference import verify

        return verify(target_logits, questions)
