"""Two methods in one: the second goes on behind the first one's draft, or the one with the better draft wins.

It holds two other methods and asks them as anybody may: what is behind a draft is asked for by taking that as said.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from msgspec.structs import replace

from services.proposer.draft import MAX_DRAFT_TOKENS, Draft
from services.proposer.from_text import FromText
from services.proposer.proposer import Ask


class HybridProposer(FromText):
    def __init__(self, first: FromText, then: FromText, rule: str) -> None:
        super().__init__(first.knowledge)
        self._first, self._then = first, then
        self._continues = rule == "continue"

    def guess(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        drafts = self._first.guess(asks)
        if self._continues:
            return self._continued(asks, drafts)
        return [
            max(both, key=expected_tokens) for both in zip(drafts, self._then.guess(asks), strict=True)
        ]

    def _continued(self, asks: Sequence[Ask], drafts: Sequence[Draft]) -> Sequence[Draft]:
        left = [
            Ask(ask.view, min(ask.budget, MAX_DRAFT_TOKENS) - len(draft.tokens), [*ask.ahead, *draft.tokens])
            for ask, draft in zip(asks, drafts, strict=True)
        ]
        return [joined(*both) for both in zip(drafts, self._then.guess(left), strict=True)]


def joined(draft: Draft, rest: Draft) -> Draft:
    """The first one says where it came from."""
    if not draft.tokens or not rest.tokens:
        return draft if draft.tokens else rest
    tokens, chances = draft.tokens + rest.tokens, draft.chances + rest.chances
    return replace(draft, tokens=tokens, chances=chances)


def expected_tokens(draft: Draft) -> float:
    """How many of them will stand, by its own account."""
    return float(sum(accumulate(draft.chances, mul)))
