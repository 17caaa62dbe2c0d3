"""No guesses at all: plain decoding, as the speculative path with empty drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from services.proposer.draft import EMPTY, Draft
from services.proposer.proposer import Ask, Needs, Outcome


class NaiveProposer:
    needs: ClassVar[Needs] = Needs.TOKENS
    gives_probs: ClassVar[bool] = False

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        return [EMPTY] * len(asks)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        pass

    def forget(self, sequence_id: int) -> None:
        pass

    def held_bytes(self) -> int:
        return 0
