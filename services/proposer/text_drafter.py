"""Base of the text drafters: they share one suffix index and ask it for different sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from services.api.drafter import Committed, Draft, Drafter, DraftRequest, Needs
from services.api.settings import Settings
from services.proposer.fast import Rule, SuffixIndex


class TextDrafter:
    needs: ClassVar[Needs] = Needs.TOKENS
    gives_probs: ClassVar[bool] = False
    # Bits of services/proposer/fast.
    sources: ClassVar[int]
    rule: ClassVar[Rule] = Rule()

    def __init__(self, index: SuffixIndex, rule: Rule | None = None) -> None:
        self._index, self._rule = index, rule or self.rule

    @classmethod
    def of(cls, settings: Settings, index: SuffixIndex, others: Mapping[str, Drafter]) -> Drafter:
        return cls(index)  # type: ignore[return-value]

    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        return self._index.draft(requests, self.sources, self._rule)

    def commit(self, results: Sequence[Committed]) -> None:
        """The text of the next request has the accepted tokens."""

    def forget(self, sequence_ids: Sequence[int]) -> None:
        self._index.forget(sequence_ids)
