"""Prediction: the caller says what the answer will be like, and as long as it is, that is the guess. Where the answer
differs, its place in the prediction is found again (suffix_store/predicting.py)."""

from __future__ import annotations

from collections.abc import Sequence

from services.proposer.draft import Draft
from services.proposer.from_text import FromText
from services.proposer.knowledge import PREDICTION, Rule
from services.proposer.proposer import Ask


class PredictionProposer(FromText):
    def guess(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        return self.knowledge.guess(asks, PREDICTION, _RULE)


# All that is predicted is the draft: its chances say how much of it to believe.
_RULE = Rule()
