"""Prompt lookup: what followed the last occurrence of the text's own last few tokens.

The longest n-gram is tried first, the most recent occurrence wins, over prompt and output alike. Every
n-gram is entered once, when a token follows it, so a step costs O(1) per new token and n. It knows one
sequence at a time and nothing of other requests.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import ClassVar

from services.proposer.draft import EMPTY, MAX_DRAFT_TOKENS, Draft
from services.proposer.proposer import Ask, Needs, Outcome, View

# An n-gram is one int of n fields this wide: exact for every vocabulary up to a million tokens. A larger id
# loses its upper bits, which costs a wrong guess now and then and nothing else.
_TOKEN_BITS = 20
_TOKEN_MASK = (1 << _TOKEN_BITS) - 1


class NgramIndex:
    """Where each n-gram of one text was last followed by something.

        tokens   a b c a b        tables[2]:  ab -> 2, bc -> 3, ca -> 4
        position 0 1 2 3 4        key:        the last max_size tokens, packed: "abcab"

    The n-gram at the very end isn't entered until its continuation is known, so it can't find itself.
    """

    __slots__ = ("_full_mask", "_key", "_length", "_sizes", "_tables")

    def __init__(self, min_size: int, max_size: int) -> None:
        self._sizes = range(max_size, min_size - 1, -1)
        self._tables: list[tuple[int, int, dict[int, int]]] = [
            (size, (1 << _TOKEN_BITS * size) - 1, {}) for size in self._sizes
        ]
        self._full_mask = self._tables[0][1]
        self._key = 0
        self._length = 0

    def extend(self, tokens: array[int]) -> None:
        """Enter what was appended to the text since the last call."""
        key, full, tables = self._key, self._full_mask, self._tables
        for position in range(self._length, len(tokens)):
            for size, mask, table in tables:
                if position >= size:
                    table[key & mask] = position
            key = (key << _TOKEN_BITS | tokens[position] & _TOKEN_MASK) & full
        self._key = key
        self._length = len(tokens)

    def find(self) -> tuple[int, int]:
        """(position after the best earlier occurrence of the text's end, its n), or (-1, 0)."""
        key, length = self._key, self._length
        for size, mask, table in self._tables:
            if size < length:
                position = table.get(key & mask)
                if position is not None:
                    return position, size
        return -1, 0

    def held_bytes(self) -> int:
        """Tables, and their keys of about 32 bytes; the positions are shared between the tables."""
        entries = sum(len(table) for _, _, table in self._tables)
        return sum(sys.getsizeof(table) for _, _, table in self._tables) + 32 * entries + 32 * self._length


class NgramProposer:
    needs: ClassVar[Needs] = Needs.TOKENS
    gives_probs: ClassVar[bool] = False

    def __init__(self, min_size: int, max_size: int) -> None:
        self._min_size = min_size
        self._max_size = max_size
        self._indexes: dict[int, NgramIndex] = {}

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._draft(ask.view, 0 if ask.ahead else ask.budget) for ask in asks]

    def _draft(self, view: View, budget: int) -> Draft:
        index = self._indexes.get(view.sequence_id)
        if index is None:
            index = self._indexes[view.sequence_id] = NgramIndex(self._min_size, self._max_size)
        index.extend(view.tokens)
        start, size = index.find()
        if start < 0 or budget < 1:
            return EMPTY
        return Draft(continuation(view.tokens, start, min(budget, MAX_DRAFT_TOKENS)), "ngram", size)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        pass

    def forget(self, sequence_id: int) -> None:
        self._indexes.pop(sequence_id, None)

    def held_bytes(self) -> int:
        return sum(index.held_bytes() for index in self._indexes.values())


def continuation(tokens: array[int], start: int, budget: int) -> list[int]:
    """The `budget` tokens from `start` on. At the end of the text it goes on with its own guess: a match
    that near to the end is a text that repeats itself, and the repetition goes on.

        text  x y z x y z        start at the second x, budget 5  ->  x y z x y
                    ^
    """
    found = tokens[start : start + budget].tolist()
    period = len(found)
    return found if period == budget else (found * (budget // period + 1))[:budget]
