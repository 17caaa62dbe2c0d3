"""What this process has learned since it last wrote, in memory. Knows no files and no threads: the caller holds a lock.

A text belongs to a namespace and has a number. It is written to disk in pieces.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# What a piece takes besides its tokens, in tokens: it bounds tiny texts, too.
PRICE = 64


@dataclass(slots=True, eq=False)
class LearningText:
    space: str
    number: int
    tokens: array[int] = field(default_factory=lambda: array("i"))


class Learning:
    """`max_tokens` is for all texts that are in no segment yet, also those on disk."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        # Of the next text that begins. No other process has the same numbers.
        self.next_number = secrets.randbits(62)
        self._open: dict[tuple[str, int], LearningText] = {}
        self._unwritten: dict[LearningText, None] = {}
        self._held = 0
        # On disk, and their size with prices.
        self.stored_tokens = self.stored_size = 0
        # Tokens that there was no room for.
        self.dropped = 0

    def learn(self, space: str, text_id: int, tokens: Sequence[int]) -> None:
        """ValueError, OverflowError: those are no token ids."""
        new = array("i", tokens)
        if min(new) < 0:
            raise ValueError("token ids are not negative")
        text = self._open.get((space, text_id))
        price = len(new) + (0 if text and text.tokens else PRICE)
        if self.stored_size + self._held + price > self._max_tokens:
            # The rest of the text would come after a gap.
            self._open.pop((space, text_id), None)
            self.dropped += len(new)
            return
        if text is None:
            text = self._open[space, text_id] = LearningText(space, self.next_number)
            self.next_number += 1
        text.tokens.extend(new)
        self._held += price
        self._unwritten[text] = None

    def end(self, space: str, text_id: int) -> None:
        self._open.pop((space, text_id), None)

    def unwritten(self) -> list[tuple[LearningText, array[int]]]:
        """Texts, with tokens to be written."""
        return [(text, text.tokens[:]) for text in self._unwritten]

    def written(self, texts: Iterable[tuple[LearningText, array[int]]]) -> None:
        for text, tokens in texts:
            del text.tokens[: len(tokens)]
            if not text.tokens:
                del self._unwritten[text]
            price = len(tokens) + (0 if text.tokens else PRICE)
            self._held -= price
            self.stored_size += price
            self.stored_tokens += len(tokens)

    def unwritten_tokens(self) -> int:
        return sum(len(text.tokens) for text in self._unwritten)
