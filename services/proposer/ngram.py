"""Prompt lookup: what followed the text's own last few tokens before, in prompt or output. The longest n-gram is tried
first; of several places the last one, or what followed most often, wins. It knows nothing of other requests."""

from __future__ import annotations

from collections.abc import Sequence

from services.proposer.draft import Draft
from services.proposer.from_text import FromText
from services.proposer.knowledge import NGRAM, Rule
from services.proposer.proposer import Ask


class NgramProposer(FromText):
    def guess(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        return self.knowledge.guess(asks, NGRAM, _RULE)


# N-grams have lengths instead.
_RULE = Rule()
