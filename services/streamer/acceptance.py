"""How well the drafts of a request did, counted from the runs of its tokens, whatever ended it.

"Accepted" counts draft tokens only, never the target's own token. Knows no HTTP and no metrics.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from services.messages import Run
from services.target.verify.policy import Verification


@dataclass(slots=True)
class Acceptance:
    """Counts of verify steps. Steps with an empty draft are kept apart: nothing was verified in them."""

    steps: int = 0
    empty: int = 0
    drafted: int = 0
    accepted: int = 0
    longest: int = 0
    histogram: list[int] = field(default_factory=list)  # [j]: steps that accepted exactly j draft tokens

    def add(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self.steps += 1
            if run.drafted <= 0:
                self.empty += 1
                continue
            self.drafted += run.drafted
            self.longest = max(self.longest, run.drafted)
            self._accept(run.accepted)

    def _accept(self, accepted: int) -> None:
        self.accepted += accepted
        if accepted >= len(self.histogram):
            self.histogram += [0] * (accepted + 1 - len(self.histogram))
        self.histogram[accepted] += 1

    def merge(self, other: Acceptance) -> None:
        self.steps += other.steps
        self.empty += other.empty
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.longest = max(self.longest, other.longest)
        missing = len(other.histogram) - len(self.histogram)
        self.histogram += [0] * max(0, missing)
        for index, count in enumerate(other.histogram):
            self.histogram[index] += count

    def report(self, verification: Verification) -> dict[str, Any] | None:
        """`metrics.speculative_decoding` of a response; None when no draft was verified."""
        verified = self.steps - self.empty
        if verified == 0:
            return None
        return {
            "mean_acceptance_length": 1 + self.accepted / verified,
            "draft_acceptance_rate": self.accepted / self.drafted,
            "acceptance_histogram": self.histogram,
            "num_spec_steps": verified,
            "num_accepted_draft_tokens": self.accepted,
            "num_draft_tokens": self.drafted,
            "num_spec_tokens": self.longest,
            "verify_strategy": verification.strategy,
            "lossless": verification.lossless,
        }
