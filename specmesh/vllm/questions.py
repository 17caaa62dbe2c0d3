"""Propose messages, and what their answers say: which tokens of which text the proposer has, and what it drafts.

A message has the tokens that the proposer hasn't confirmed, or all of them if it doesn't know the text: it is new, or
the proposer has restarted. Texts that have ended are told until that is confirmed, to be learned from.

Pure: knows no sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from specmesh.vllm.continuation import Drafted
from specmesh.vllm.rows import Text

# Ended texts that are kept until they are confirmed, and the tokens of them in one message.
MOST_ENDED, TOKENS_A_MESSAGE = 256, 32_768
# The longest draft that a proposer gives.
MOST_BUDGET = 64
_NO_TOKENS = b""
_CHANCE_BYTES = 8
# Acceptance.cells
Cells = Callable[[Sequence[str], Sequence[int], bytes], list[int]]

_encode = msgspec.msgpack.Encoder().encode


class Ask(NamedTuple):
    """A draft of at most `budget` tokens behind the text and `ahead`."""

    text: Text
    budget: int
    ahead: list[int]


class Questions:
    def __init__(self, worker: str, epoch: int, namespace: str, vocabulary: str) -> None:
        self._worker, self._epoch, self._namespace, self._vocabulary = worker, epoch, namespace, vocabulary
        # By text: how many of its tokens the proposer has; and how many it will have after the open question.
        self._confirmed: dict[int, int] = {}
        self._asked: dict[int, int] = {}
        self._ended: deque[tuple[Text, int]] = deque()
        self._said = 0
        self._forget: list[int] = []
        self._forgetting = 0
        self._life = 0

    @property
    def untold(self) -> int:
        """Ended texts that the proposer hasn't confirmed."""
        return len(self._ended)

    def end(self, texts: Sequence[Text]) -> None:
        for text in texts:
            self._asked.pop(text.text_id, None)
            self._ended.append((text, self._confirmed.pop(text.text_id, 0)))
        while len(self._ended) > MOST_ENDED:
            oldest, _ = self._ended.popleft()
            self._said = max(0, self._said - 1)
            self._forget.append(oldest.text_id)

    def body(self, step: int, asks: Sequence[Ask], counts: Sequence[float] | None = None) -> bytes:
        """Propose, as an array of its fields; docs/internals/messages.md names them. `counts`: EngineCounts."""
        items = []
        self._asked = {}
        for text, budget, ahead in asks:
            length, confirmed = text.length, self._confirmed.get(text.text_id, 0)
            item: tuple[Any, ...] = (
                text.text_id, length, text.tokens(confirmed), not confirmed, text.prompt_tokens,
                min(budget, MOST_BUDGET), "", ahead,
            )  # fmt: skip
            items.append(item if confirmed else (*item, self._namespace))
            self._asked[text.text_id] = length
        self._forgetting = len(self._forget)
        return _encode(
            (step, self._epoch, self._worker, items, self._forget, self._tell(), self._vocabulary, True, counts)
        )  # fmt: skip

    def _tell(self) -> list[tuple[Any, ...]]:
        told: list[tuple[Any, ...]] = []
        tokens = 0
        for text, confirmed in self._ended:
            tokens += text.length - confirmed
            if told and tokens > TOKENS_A_MESSAGE:
                break
            told.append(
                (text.text_id, text.length, text.tokens(confirmed), not confirmed, text.prompt_tokens, self._namespace)
            )
        self._said = len(told)
        return told

    def answered(self, fields: list[Any], life: int, cells: Cells) -> list[Drafted]:
        """Proposed, as an array of its fields. Raises ValueError where it can't be one; then nothing is confirmed."""
        try:
            drafts, unknown = _unpacked(fields[1], cells), list(fields[2])
        except (IndexError, TypeError, KeyError) as error:
            raise ValueError(f"no answer: {error}") from None
        forgot = self._life not in (0, life)
        self._life = life
        if forgot:
            # What was said of known texts said nothing to it.
            known = self._asked.keys() & self._confirmed.keys()
            self.forgotten()
            self._asked = {key: length for key, length in self._asked.items() if key not in known}
        else:
            for _ in range(self._said):
                self._ended.popleft()
            del self._forget[: self._forgetting]
        self._said = self._forgetting = 0
        self._confirmed.update(self._asked)
        self._asked = {}
        for text_id in unknown:
            self._confirmed.pop(text_id, None)
        return drafts

    def forgotten(self) -> None:
        """The proposer has none of our texts."""
        self._confirmed.clear()
        self._ended = deque((text, 0) for text, _ in self._ended)
        self._forget.clear()


def _unpacked(columns: list[Any], cells: Cells) -> list[Drafted]:
    """DraftColumns. Raises ValueError, IndexError or TypeError where the columns don't fit."""
    ids, lengths, counts, sources = columns[:4]
    if columns[5:6] not in ([], [[]]):
        raise ValueError("a tree, which wasn't asked for")
    found, chances = np.frombuffer(columns[6] or _NO_TOKENS, np.int32), columns[7] or _NO_TOKENS
    if len(found) * _CHANCE_BYTES != len(chances) or sum(counts) != len(found) or min(counts, default=0) < 0:
        raise ValueError("the columns differ in length")
    if len(found) and found.min() < 0:
        raise ValueError("a token that is none")
    if not len(ids) == len(lengths) == len(counts) == len(sources):
        raise ValueError("the columns differ in length")
    tokens, places = found.tolist(), cells(sources, counts, chances)
    drafts, at = [], 0
    for text_id, length, count in zip(ids, lengths, counts, strict=True):
        end = at + count
        drafts.append(Drafted(text_id, length, tokens[at:end], places[at:end]))
        at = end
    return drafts
