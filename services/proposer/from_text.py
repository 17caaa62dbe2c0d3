"""What methods that guess from text have in common: one knowledge of all texts, and nothing to say until its loops are
compiled. Which sources they ask is theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from services.proposer.draft import EMPTY, Draft
from services.proposer.knowledge import Knowledge
from services.proposer.proposer import Ask, Needs, Outcome
from services.proposer.suffix_store import compiling


class FromText:
    needs: ClassVar[Needs] = Needs.TOKENS
    gives_probs: ClassVar[bool] = False

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        return self.guess(asks) if compiling.is_compiled() else [EMPTY] * len(asks)

    def guess(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        raise NotImplementedError

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """What became of a draft is seen in the text."""

    def forget(self, sequence_id: int) -> None:
        self.knowledge.forget(sequence_id)

    def held_bytes(self) -> int:
        """Of all methods together: they share it."""
        return self.knowledge.held_bytes()
