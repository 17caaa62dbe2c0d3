"""Which text is in which row: requests followed by their tokens, because vLLM says no more than the rows.

From one call to the next a row may have another request, rows may change places, a request may leave for some steps and
come back, and two requests may have the same text. A row goes on with the known text that equals all of the row but the
tokens sampled in this step; without one it begins a text, whose prompt is what was there before. Texts that are equal
may take each other's rows: nothing tells them apart, and nothing has to.

Rule 1: a text is never continued by tokens of another one.
Rule 2: a text that was mistaken for ended is begun again, with all of it as its prompt; that costs sending it again.

Pure: knows no sockets and no drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from specmesh.vllm.continuation import Continuation

TOKEN_BYTES = 4
# Calls without its row after which a text has ended: a request that a step had no room for is back in the next.
RESTS = 2
# Tokens at the end of a row that are compared if the row seems to go on; of a row that moved, all are.
COMPARED = 8192


class Text:
    """A request's tokens so far, and what is expected to follow them."""

    __slots__ = ("continuation", "length", "prompt_tokens", "raw", "seen", "text_id")

    def __init__(self, text_id: int, raw: bytearray, prompt_tokens: int) -> None:
        self.text_id = text_id
        # int32, little-endian, as in vLLM's array.
        self.raw = raw
        self.length = len(raw) // TOKEN_BYTES
        self.prompt_tokens = prompt_tokens
        self.seen = 0
        self.continuation = Continuation(prompt_tokens)

    def tokens(self, begin: int = 0) -> list[int]:
        return memoryview(self.raw)[TOKEN_BYTES * begin :].cast("i").tolist()


class Step(NamedTuple):
    """`texts`: of each row, None where nothing was sampled. `began` and `ended` since the last call."""

    texts: list[Text | None]
    began: int
    ended: list[Text]


class Rows:
    def __init__(self) -> None:
        self._texts: dict[int, Text] = {}
        # By row, as of the last call that had tokens for it.
        self._at: dict[int, Text] = {}
        self._calls = 0
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._texts)

    def get(self, text_id: int) -> Text | None:
        return self._texts.get(text_id)

    def follow(self, sampled: Sequence[Sequence[int]], lengths: Any, tokens: Any) -> Step:
        """`tokens[row, : lengths[row]]`, an int32 array, ends with what was sampled in this step."""
        self._calls += 1
        found: list[Text | None] = []
        by_length: dict[int, list[Text]] | None = None
        began = 0
        # Bytes of all rows: slices of it are cheaper than the array's.
        held = np.ascontiguousarray(tokens).data.cast("B") if len(sampled) else memoryview(b"")
        width = TOKEN_BYTES * tokens.shape[1]
        for row, (new, length) in enumerate(zip(sampled, lengths[: len(sampled)].tolist(), strict=True)):
            if not new:
                found.append(None)
                continue
            begin, end = row * width, row * width + TOKEN_BYTES * length
            before = held[begin : end - TOKEN_BYTES * len(new)]
            text = self._at.get(row)
            if text is None or text.seen == self._calls or not _goes_on(text, before):
                if by_length is None:
                    by_length = self._by_length()
                text = self._moved(by_length.get(length - len(new), ()), before)
                if text is None:
                    text = self._begin(before)
                    began += 1
                self._at[row] = text
            text.raw += held[end - TOKEN_BYTES * len(new) : end]
            text.length = length
            text.seen = self._calls
            found.append(text)
        return Step(found, began, self._ended())

    def end_all(self) -> list[Text]:
        """Nothing runs any more."""
        ended = list(self._texts.values())
        self._texts.clear()
        self._at.clear()
        return ended

    def _by_length(self) -> dict[int, list[Text]]:
        """Texts that this call has not continued yet, by their length."""
        by_length: dict[int, list[Text]] = {}
        for text in self._texts.values():
            if text.seen < self._calls:
                by_length.setdefault(text.length, []).append(text)
        return by_length

    def _moved(self, candidates: Sequence[Text], before: memoryview) -> Text | None:
        # One that is continued in this call is longer by now.
        return next((text for text in candidates if text.raw == before), None)

    def _begin(self, before: memoryview) -> Text:
        text = Text(self._next_id, bytearray(before), len(before) // TOKEN_BYTES)
        self._next_id += 1
        self._texts[text.text_id] = text
        return text

    def _ended(self) -> list[Text]:
        ended = [text for text in self._texts.values() if self._calls - text.seen >= RESTS]
        for text in ended:
            del self._texts[text.text_id]
        if ended:
            gone = {id(text) for text in ended}
            self._at = {row: text for row, text in self._at.items() if id(text) not in gone}
        return ended


def _goes_on(text: Text, before: memoryview) -> bool:
    raw = text.raw
    if len(raw) != len(before):
        return False
    if len(raw) <= TOKEN_BYTES * COMPARED:
        return raw == before
    return raw[-TOKEN_BYTES * COMPARED :] == before[-TOKEN_BYTES * COMPARED :]


def misplaced(step: Step, lengths: Any, tokens: Any) -> list[int]:
    """Rows whose text isn't what the row holds: for tests and the debug mode."""
    return [
        row
        for row, text in enumerate(step.texts)
        if text is not None and tokens[row, : int(lengths[row])].tobytes() != text.raw
    ]
