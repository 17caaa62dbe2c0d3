"""All sources together, a token at a time: what stood of what each said so far, by context and counts, tells which one
is believed, and what it means that others say the same, or something else.

Every source is asked each time, and what it said is compared with how the text went on, also where another was
believed: so none is ever given up. The draft goes on as long as there is any hope; how much of it is verified is the
target's to decide, which knows the price.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.proposer.draft import Draft
from services.proposer.from_text import FromText
from services.proposer.knowledge import CALIBRATED, CORPUS, NGRAM, OWN, PREDICTION, SHARED, STORE, Rule
from services.proposer.proposer import Ask

# No draft is worth a token that is less likely than this.
_LEAST = 0.02


class AutoProposer(FromText):
    def guess(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        return self.knowledge.guess(asks, _ALL, _RULE)


_ALL = CALIBRATED | OWN | NGRAM | PREDICTION | SHARED | STORE | CORPUS
# Chances decide how far to go, not lengths.
_RULE = Rule(least=_LEAST)
