"""Two drafters in one: the second continues the first one's draft, or the better of both drafts is used.

It works with any two drafters. To continue, the second is asked for what follows the first one's draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import ClassVar

import numpy as np

from services.api.drafter import MAX_DRAFT_TOKENS, Committed, Draft, Drafter, DraftRequest, Needs
from services.api.settings import Settings
from services.proposer.index import SuffixIndex

# Confidence of each token of a draft that gives none.
ASSUMED_CONFIDENCE = 0.5


class HybridDrafter:
    name: ClassVar[str] = "hybrid"
    # An instance takes both from its two drafters.
    needs: ClassVar[Needs] = Needs.TOKENS
    gives_probs: ClassVar[bool] = False

    def __init__(self, first: Drafter, then: Drafter, rule: str) -> None:
        self._both = first, then
        self._continues = rule == "continue"
        self.needs = max((each.needs for each in self._both), key=list(Needs).index)  # type: ignore[misc]
        self.gives_probs = any(each.gives_probs for each in self._both)  # type: ignore[misc]

    @classmethod
    def of(cls, settings: Settings, index: SuffixIndex, others: Mapping[str, Drafter]) -> Drafter:
        return cls(others[settings.hybrid_first], others[settings.hybrid_then], settings.hybrid_rule)

    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        first, then = self._both
        if not self._continues:
            return [
                max(drafts, key=expected_tokens)
                for drafts in zip(first.draft(requests), then.draft(requests), strict=True)
            ]
        drafts = first.draft(requests)
        rest = [
            replace(
                request,
                budget=min(request.budget, MAX_DRAFT_TOKENS) - len(draft.tokens),
                ahead=[*request.ahead, *draft.tokens],
            )
            for request, draft in zip(requests, drafts, strict=True)
        ]
        return [joined(*both) for both in zip(drafts, then.draft(rest), strict=True)]

    def commit(self, results: Sequence[Committed]) -> None:
        for drafter in self._both:
            drafter.commit(results)

    def forget(self, text_ids: Sequence[int]) -> None:
        for drafter in self._both:
            drafter.forget(text_ids)


def joined(draft: Draft, rest: Draft) -> Draft:
    """Both as one draft, named after the first. A draft with probabilities can't be joined to one without: sampled and
    certain tokens are verified by different rules."""
    if not draft.tokens or not rest.tokens:
        return draft if draft.tokens else rest
    if (draft.probs is None) != (rest.probs is None):
        return draft
    both_say = draft.confidence and rest.confidence
    return draft._replace(
        tokens=draft.tokens + rest.tokens,
        confidence=draft.confidence + rest.confidence if both_say else [],
        probs=None if draft.probs is None else np.concatenate([draft.probs, rest.probs]),
    )


def expected_tokens(draft: Draft) -> float:
    """The expected number of accepted tokens, by its own confidence."""
    return float(sum(accumulate(draft.confidence or [ASSUMED_CONFIDENCE] * len(draft.tokens), mul)))
