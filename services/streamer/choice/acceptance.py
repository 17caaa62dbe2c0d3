"""Acceptance of a request's drafts, counted from the runs of its tokens, however it ended.

"Accepted" counts draft tokens only, never the model's own token; the metrics of other servers are made here from the
same counts. Knows no HTTP and no metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from services.api.messages import Run
from services.api.methods import PREDICTION
from services.api.strategies import Verification


def runs_behind(runs: Sequence[Run], known: int) -> Sequence[Run]:
    """What is left of a message's runs when its first `known` tokens are known already."""
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
class ChoiceAcceptance:
    """Counts of verify steps. Steps with an empty draft are kept apart: nothing was verified in them."""

    in_order: bool = False  # whether the steps are kept in order, too
    # Number of steps by (drafted, accepted, generated) tokens: everything else follows from it.
    kinds: dict[tuple[int, int, int], int] = field(default_factory=dict)
    order: list[tuple[int, int]] = field(default_factory=list)

    def add(self, runs: Iterable[Run]) -> None:
        kinds = self.kinds
        for run in runs:
            kind = (run.drafted, run.accepted, run.length)
            kinds[kind] = kinds.get(kind, 0) + 1
            if self.in_order and run.drafted > 0:
                self.order.append((run.drafted, min(run.accepted, run.drafted)))

    def merge(self, other: ChoiceAcceptance) -> None:
        self.in_order |= other.in_order
        for kind, steps in other.kinds.items():
            self.kinds[kind] = self.kinds.get(kind, 0) + steps
        self.order += other.order

    @property
    def steps(self) -> int:
        return sum(self.kinds.values())

    @property
    def verified(self) -> Counter[tuple[int, int]]:
        """Number of steps with a draft, by (drafted, accepted) tokens."""
        verified: Counter[tuple[int, int]] = Counter()
        for (drafted, accepted, _), steps in self.kinds.items():
            if drafted > 0:
                verified[drafted, min(accepted, drafted)] += steps
        return verified

    @property
    def given(self) -> Counter[int]:
        """Number of steps, by generated tokens."""
        given: Counter[int] = Counter()
        for (_, _, length), steps in self.kinds.items():
            given[length] += steps
        return given

    def report(self, verification: Verification, longest: int) -> dict[str, Any] | None:
        """`metrics.speculative_decoding` of a response: vLLM's keys, and two of our own at the end. None when no draft
        was allowed: `longest` is how long one might have been."""
        verified = self.verified
        longest = max([longest, *(length for length, _ in verified)])
        if longest == 0:
            return None
        steps = sum(verified.values())
        drafted = sum(length * count for (length, _), count in verified.items())
        accepted = sum(kept * count for (_, kept), count in verified.items())
        rows = {length: [0] * (length + 1) for length in sorted({length for length, _ in verified})}
        whole = [0] * (longest + 1)
        for (length, kept), count in verified.items():
            rows[length][kept] += count
            whole[kept] += count
        report: dict[str, Any] = {
            "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
            "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
            "acceptance_histogram": whole,
            "acceptance_histogram_by_draft_length": {str(length): row for length, row in rows.items()},
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafted,
            "num_spec_tokens": longest,
        }
        if self.in_order:
            report["per_step_accepted"] = [kept for _, kept in self.order]
            report["per_step_drafted"] = [length for length, _ in self.order]
        return {**report, "verify_strategy": verification.strategy, "lossless": verification.lossless}

    def speculate_metrics(self, longest: int) -> dict[str, Any]:
        """FastDeploy's metrics of a choice. There every token of a step is "accepted", the model's own too,
        and every step, whatever was drafted in it, had room for `longest` + 1 of them."""
        longest = max([longest, *(length for length, _ in self.verified)])
        steps, given = self.steps, self.given
        # heads[i]: number of steps that generated more than i tokens.
        heads = [sum(count for length, count in given.items() if length > head) for head in range(longest + 1)]
        tokens = sum(length * count for length, count in given.items())
        return {
            "accepted_tokens": tokens,
            "rejected_tokens": max(0, steps * (longest + 1) - tokens),
            "accept_ratio": 1 - steps / tokens if tokens else 0.0,
            "average_accept_length": tokens / steps if steps else 0.0,
            "accepted_tokens_per_head": heads,
            "accept_ratio_per_head": [reached / before if before else 0.0 for before, reached in pairwise(heads)],
        }


@dataclass(slots=True)
class Predicted:
    """Draft tokens from the request's prediction, as OpenAI counts them: a token of the answer is accepted, every other
    draft token is rejected."""

    accepted: int = 0
    rejected: int = 0

    def add(self, runs: Iterable[Run], counted: int) -> None:
        """The first `counted` of the runs' tokens belong to the answer; a stop string cut the others off."""
        for run in runs:
            if run.source == PREDICTION:
                accepted = min(run.accepted, run.drafted, counted)
                self.accepted += accepted
                self.rejected += run.drafted - accepted
            counted -= min(run.length, counted)
