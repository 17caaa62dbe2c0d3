"""Ended texts that the proposer may learn from, kept until it has confirmed them. Bounded: for texts that don't fit the
proposer is only told that they have ended. Knows no sockets."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from services.api.messages import Ended
from services.worker.scheduling.sequence import Sequence

# Bounds of what is kept, and of what goes into one request: more would delay its answer.
MOST_TEXTS = 256
MOST_TOKENS = 262_144
TOKENS_A_QUESTION = 32_768


class _Text(NamedTuple):
    sequence: Sequence
    confirmed: int  # tokens that the proposer has; 0: none, or no longer
    heard: bool

    @property
    def size(self) -> int:
        return len(self.sequence.token_ids) - self.confirmed


class EndedTexts:
    def __init__(self) -> None:
        self._texts: deque[_Text] = deque()
        # How many of them are in the open request.
        self._said = 0

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, sequence: Sequence, confirmed: int, heard: bool) -> list[int]:
        """Add a text. Returns the sequences dropped for it, which the proposer is to forget."""
        self._texts.append(_Text(sequence, confirmed, heard))
        gone: list[int] = []
        while len(self._texts) > MOST_TEXTS or sum(text.size for text in self._texts) > MOST_TOKENS:
            oldest = self._texts.popleft()
            self._said = max(0, self._said - 1)
            gone += [oldest.sequence.sequence_id] * oldest.heard
        return gone

    def sequences(self) -> list[Sequence]:
        return [text.sequence for text in self._texts]

    def say(self) -> list[Ended]:
        """The oldest texts, for the next request."""
        ends: list[Ended] = []
        tokens = 0
        for sequence, confirmed, _ in self._texts:
            text = sequence.token_ids[confirmed:]
            tokens += len(text)
            if ends and tokens > TOKENS_A_QUESTION:
                break
            ends.append(
                Ended(
                    sequence_id=sequence.sequence_id,
                    committed=len(sequence.token_ids),
                    tokens=text,
                    first=confirmed == 0,
                    prompt_tokens=sequence.prompt_tokens,
                    namespace=sequence.generate.namespace,
                )
            )
        self._said = len(ends)
        return ends

    def said(self) -> None:
        """The request that contained them was answered."""
        for _ in range(self._said):
            self._texts.popleft()
        self._said = 0

    def all_unknown(self) -> None:
        """The proposer knows none of our texts."""
        self._texts = deque(_Text(text.sequence, 0, False) for text in self._texts)
        self._said = 0
