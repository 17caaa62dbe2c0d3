"""What is expected to follow a text: a proposer's answer, used for as many steps as it matches, and the next answer
joined to it.

    text            t t t t|                      start = len(text)
    expected               |e e e e e e           the answer so far
    draft                  |d d d d                as many as pay
    asked ahead                        |a a a      behind all that is expected

Pure: knows no sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

NOTHING = -1


class Drafted(NamedTuple):
    """Of an answer: tokens that may follow the first `length` ones of a text and of what was ahead of it; and where the
    acceptance of tokens like each of them is counted (Acceptance.cells). In columns: a step of many requests has
    hundreds."""

    text_id: int
    length: int
    tokens: list[int]
    cells: list[int]


class Continuation:
    __slots__ = ("asked", "asked_at", "at", "cells", "drafted", "start", "tokens", "waited")

    def __init__(self, start: int) -> None:
        self.start = start
        # Of the answers so far; from `at` on they are expected.
        self.tokens: list[int] = []
        self.cells: list[int] = []
        self.at = 0
        # Length of text and expected tokens that the last question was about, if its answer would still be of use.
        self.asked = NOTHING
        # Length of the text then.
        self.asked_at = NOTHING
        # Length of the last draft, and whether the step waited for it.
        self.drafted = 0
        self.waited = False

    @property
    def left(self) -> int:
        return len(self.tokens) - self.at

    def grow(self, new: list[int]) -> tuple[int, bool]:
        """The text has gone on. How many of the new tokens were expected, from where `at` was; and whether the next one
        was another."""
        at, count = self.at, len(new)
        self.start += count
        expected = self.tokens[at : at + count]
        if expected == new:
            self.at = at + count
            return count, False
        right = next((place for place, token in enumerate(expected) if token != new[place]), len(expected))
        wrong = right < len(expected)
        if wrong:
            self.asked = NOTHING
        # Shorter than what is new, or wrong: nothing is left of it.
        self.at = len(self.tokens)
        return right, wrong

    def join(self, drafted: Drafted, recent: Sequence[int]) -> bool:
        """The answer to a question; `recent` are the text's tokens from its length on. False: of no use."""
        if drafted.length != self.asked:
            return False
        late = self.start - drafted.length
        if late <= 0:
            end = self.at - late
            self.tokens = self.tokens[self.at : end] + drafted.tokens
            self.cells = self.cells[self.at : end] + drafted.cells
            self.at = 0
            return True
        # It came late, so nothing expected is left; the text may have gone another way meanwhile.
        if drafted.tokens[:late] != list(recent):
            return False
        self.tokens, self.cells, self.at = drafted.tokens, drafted.cells, late
        return True
