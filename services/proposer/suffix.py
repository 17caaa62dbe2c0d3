"""Suffix decoding: what most often followed the contexts that a text ends with, while it is probable enough.

It searches the request's own text and the learned text of its namespace. The draft with the best score wins; among
equal scores that of the own text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from services.api.drafter import Drafter
from services.api.settings import Settings
from services.proposer.fast import CORPUS, OWN, SHARED, STORE, Rule, SuffixIndex
from services.proposer.text_drafter import TextDrafter


class SuffixDrafter(TextDrafter):
    name: ClassVar[str] = "suffix"
    sources: ClassVar[int] = OWN | SHARED | STORE | CORPUS

    @classmethod
    def of(cls, settings: Settings, index: SuffixIndex, others: Mapping[str, Drafter]) -> Drafter:
        return cls(index, Rule.of(settings))
