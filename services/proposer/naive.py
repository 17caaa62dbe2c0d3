"""No drafts: plain decoding, through the same code as the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from services.api.drafter import NO_DRAFT, Committed, Draft, Drafter, DraftRequest, Needs
from services.api.settings import Settings
from services.proposer.index import SuffixIndex


class NaiveDrafter:
    name: ClassVar[str] = "naive"
    needs: ClassVar[Needs] = Needs.TOKENS
    gives_probs: ClassVar[bool] = False

    @classmethod
    def of(cls, settings: Settings, index: SuffixIndex, others: Mapping[str, Drafter]) -> Drafter:
        return cls()

    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        return [NO_DRAFT] * len(requests)

    def commit(self, results: Sequence[Committed]) -> None:
        pass

    def forget(self, text_ids: Sequence[int]) -> None:
        pass
