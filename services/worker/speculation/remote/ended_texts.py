"""Texts that came to their end and that the proposer may learn from, until it has heard of them. Bounded: what doesn't
fit is said to be forgotten, no more. Knows no sockets."""

from __future__ import annotations

from typing import NamedTuple

from services.api.messages import Ended
from services.worker.scheduling.sequence import Sequence

# What may wait, and what goes into one question: more would delay its answer.
MOST_TEXTS = 256
MOST_TOKENS = 262_144
TOKENS_A_QUESTION = 32_768


class _Text(NamedTuple):
    sequence: Sequence
    confirmed: int  # tokens that the proposer has; 0: it never heard of it, or knows nothing any more
    heard: bool

    @property
    def size(self) -> int:
        return len(self.sequence.token_ids) - self.confirmed


class EndedTexts:
    def __init__(self) -> None:
        self._texts: list[_Text] = []
        self._tokens = 0
        self._said = 0

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, sequence: Sequence, confirmed: int, heard: bool) -> list[int]:
        """One more. Those that went for it: the proposer is to forget them."""
        text = _Text(sequence, confirmed, heard)
        self._texts.append(text)
        self._tokens += text.size
        gone: list[int] = []
        while len(self._texts) > MOST_TEXTS or (self._tokens > MOST_TOKENS and self._texts):
            oldest = self._drop()
            if oldest.heard:
                gone.append(oldest.sequence.id)
        return gone

    def _drop(self) -> _Text:
        oldest = self._texts.pop(0)
        self._tokens -= oldest.size
        self._said = max(0, self._said - 1)
        return oldest

    def say(self) -> list[Ended]:
        """What the next question says: the oldest."""
        ends: list[Ended] = []
        tokens = 0
        for text in self._texts:
            if ends and tokens + text.size > TOKENS_A_QUESTION:
                break
            tokens += text.size
            ends.append(_ended(text))
        self._said = len(ends)
        return ends

    def said(self) -> None:
        """That was answered."""
        for _ in range(self._said):
            self._drop()
        self._said = 0

    def all_unknown(self) -> None:
        """Whoever listens now has heard nothing."""
        self._texts = [_Text(text.sequence, 0, False) for text in self._texts]
        self._tokens = sum(text.size for text in self._texts)
        self._said = 0


def _ended(text: _Text) -> Ended:
    sequence = text.sequence
    return Ended(
        sequence_id=sequence.id,
        committed=len(sequence.token_ids),
        tokens=sequence.token_ids[text.confirmed :],
        first=text.confirmed == 0,
        prompt_tokens=sequence.prompt_tokens,
        namespace=sequence.generate.namespace,
    )
