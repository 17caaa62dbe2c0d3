"""Base of the text drafters. Each has its method in plain Python, `guess`, and names the sources by which the compiled
step does the same; the suffix index, which all of them share, asks one or the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from services.api.drafter import Committed, Draft, Drafter, DraftRequest, Needs
from services.api.settings import Settings
from services.proposer.index import SuffixIndex
from services.proposer.plain.guess import DraftRule, Guess
from services.proposer.plain.texts import Followed


class TextDrafter:
    needs: ClassVar[Needs] = Needs.TOKENS
    gives_probs: ClassVar[bool] = False
    sources: ClassVar[tuple[str, ...]]
    is_blended: ClassVar[bool] = False
    rule: DraftRule = DraftRule()

    def __init__(self, index: SuffixIndex, rule: DraftRule | None = None) -> None:
        self._index, self.rule = index, rule or self.rule

    @classmethod
    def of(cls, settings: Settings, index: SuffixIndex, others: Mapping[str, Drafter]) -> Drafter:
        return cls(index)  # type: ignore[return-value]

    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        return self._index.draft(requests, self)

    def compare(self, followed: Followed) -> None:
        """The text has gone on: compare it with what was predicted."""

    def guess(self, followed: Followed, ahead: Sequence[int], longest: int) -> Guess:
        """The draft behind the text and what is ahead of it, in plain Python."""
        raise NotImplementedError

    def commit(self, results: Sequence[Committed]) -> None:
        """The text of the next request has the accepted tokens."""

    def forget(self, text_ids: Sequence[int]) -> None:
        self._index.forget(text_ids)
