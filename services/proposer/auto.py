"""All sources together, token by token: the one with the highest acceptance rate, measured by source, context length
and count, and corrected by how much other sources agree, gives the token.

Every source is compared with the text that followed, also if another one gave the token, so a source that improves is
used again. The draft continues until acceptance is very unlikely; the worker, which knows the cost of verification,
decides how much of it is verified. Drafters outside the index are asked too; the draft with more expected tokens wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from services.api.drafter import Draft, Drafter, DraftRequest
from services.api.methods import METHODS
from services.api.settings import Settings
from services.proposer.fast import (
    CALIBRATED,
    CORPUS,
    NGRAM,
    OWN,
    PREDICTION,
    SHARED,
    STORE,
    Rule,
    SuffixIndex,
)
from services.proposer.hybrid import expected_tokens
from services.proposer.text_drafter import TextDrafter


class AutoDrafter(TextDrafter):
    name: ClassVar[str] = "auto"
    sources: ClassVar[int] = CALIBRATED | OWN | NGRAM | PREDICTION | SHARED | STORE | CORPUS
    # Drafting is cheap, and the worker decides what to verify: draft all but very improbable tokens.
    rule: ClassVar[Rule] = Rule(least=0.02)
    _others: Sequence[Drafter] = ()

    @classmethod
    def of(cls, settings: Settings, index: SuffixIndex, others: Mapping[str, Drafter]) -> Drafter:
        made = cls(index)
        made._others = [
            each for name, each in others.items() if not isinstance(each, TextDrafter) and METHODS[name].in_auto
        ]
        return made

    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        drafts = super().draft(requests)
        for other in self._others:
            pairs = zip(drafts, other.draft(requests), strict=True)
            drafts = [max(pair, key=expected_tokens) for pair in pairs]
        return drafts
