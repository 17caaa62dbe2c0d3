"""How well the drafts of a request did, counted from the runs of its tokens, whatever ended it.

"Accepted" counts draft tokens only, never the target's own token; other servers' words for it are made here from the
same counts. Knows no HTTP and no metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from services.messages import Run
from services.target.verify.policy import Verification

PREDICTION = "prediction"


def runs_behind(runs: Sequence[Run], known: int) -> Sequence[Run]:
    """What is left of a message's runs when its first `known` tokens had come before."""
    if known == 0:
        return runs
    left = []
    for run in runs:
        cut = min(run.length, known)
        known -= cut
        if cut < run.length:
            left.append(
                msgspec.structs.replace(
                    run,
                    length=run.length - cut,
                    drafted=max(0, run.drafted - cut),
                    accepted=max(0, run.accepted - cut),
                )
            )
    return left


@dataclass(slots=True)
class Acceptance:
    """Counts of verify steps. Steps with an empty draft are kept apart: nothing was verified in them."""

    in_order: bool = False  # whether each step is remembered, too
    steps: int = 0
    empty: int = 0
    # How many steps drafted so many tokens and accepted so many; and how many, empty ones too, gave so many tokens.
    verified: Counter[tuple[int, int]] = field(default_factory=Counter)
    given: Counter[int] = field(default_factory=Counter)
    order: list[tuple[int, int]] = field(default_factory=list)

    def add(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self.steps += 1
            self.given[run.length] += 1
            if run.drafted <= 0:
                self.empty += 1
                continue
            step = (run.drafted, min(run.accepted, run.drafted))
            self.verified[step] += 1
            if self.in_order:
                self.order.append(step)

    def merge(self, other: Acceptance) -> None:
        self.in_order |= other.in_order
        self.steps += other.steps
        self.empty += other.empty
        self.verified.update(other.verified)
        self.given.update(other.given)
        self.order += other.order

    @property
    def drafted(self) -> int:
        return sum(drafted * steps for (drafted, _), steps in self.verified.items())

    @property
    def accepted(self) -> int:
        return sum(accepted * steps for (_, accepted), steps in self.verified.items())

    def report(self, verification: Verification, longest: int) -> dict[str, Any] | None:
        """`metrics.speculative_decoding` of a response: vLLM's keys, and two of our own at the end. None when no draft
        was allowed: `longest` is how long one might have been."""
        longest = max([longest, *(drafted for drafted, _ in self.verified)])
        if longest == 0:
            return None
        verified, drafted, accepted = self.steps - self.empty, self.drafted, self.accepted
        rows = {length: [0] * (length + 1) for length in sorted({drafted for drafted, _ in self.verified})}
        whole = [0] * (longest + 1)
        for (length, stood), steps in self.verified.items():
            rows[length][stood] += steps
            whole[stood] += steps
        report: dict[str, Any] = {
            "mean_acceptance_length": 1 + accepted / verified if verified else 1.0,
            "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
            "acceptance_histogram": whole,
            "acceptance_histogram_by_draft_length": {str(length): row for length, row in rows.items()},
            "num_spec_steps": verified,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafted,
            "num_spec_tokens": longest,
        }
        if self.in_order:
            report["per_step_accepted"] = [accepted for _, accepted in self.order]
            report["per_step_drafted"] = [drafted for drafted, _ in self.order]
        return {**report, "verify_strategy": verification.strategy, "lossless": verification.lossless}

    def speculate_metrics(self, longest: int) -> dict[str, Any]:
        """What FastDeploy says of an answer, in its words: every token a step gave is "accepted", the target's own too,
        and every step, whatever was drafted in it, had room for `longest` + 1 of them."""
        longest = max([longest, *(drafted for drafted, _ in self.verified)])
        # Of the first head, how many steps gave a token; of the second, how many gave two; and so on.
        heads = [sum(steps for length, steps in self.given.items() if length > head) for head in range(longest + 1)]
        tokens = sum(length * steps for length, steps in self.given.items())
        return {
            "accepted_tokens": tokens,
            "rejected_tokens": max(0, self.steps * (longest + 1) - tokens),
            "accept_ratio": 1 - self.steps / tokens if tokens else 0.0,
            "average_accept_length": tokens / self.steps if self.steps else 0.0,
            "accepted_tokens_per_head": heads,
            "accept_ratio_per_head": [reached / before if before else 0.0 for before, reached in pairwise(heads)],
        }


@dataclass(slots=True)
class Predicted:
    """What became of the drafts that came out of the request's prediction, in OpenAI's words: a token is accepted when
    it is one of the answer's, and every other one that was drafted is rejected."""

    accepted: int = 0
    rejected: int = 0

    def add(self, runs: Iterable[Run], counted: int) -> None:
        """Of the runs' tokens the first `counted` are the answer's; a stop string made an end of the others."""
        for run in runs:
            if run.source == PREDICTION:
                accepted = min(run.accepted, run.drafted, counted)
                self.accepted += accepted
                self.rejected += run.drafted - accepted
            counted -= min(run.length, counted)
