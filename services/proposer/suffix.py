"""Suffix decoding: what followed the contexts that a text ends with, most often, as far as it is likely enough.

In the request's own text, and in what was said and learned in its namespace. The draft with the best score wins, the
own text's among equals. docs/proposers.md tells how. It knows neither sampling nor who asks.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.proposer.draft import Draft
from services.proposer.from_text import FromText
from services.proposer.knowledge import CORPUS, OWN, SHARED, STORE, Knowledge, Rule
from services.proposer.proposer import Ask


class SuffixProposer(FromText):
    def __init__(self, knowledge: Knowledge, rule: Rule) -> None:
        super().__init__(knowledge)
        self._rule = rule

    def guess(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        return self.knowledge.guess(asks, OWN | SHARED | STORE | CORPUS, self._rule)
