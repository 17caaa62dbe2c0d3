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


class Guesses:
    """Tokens that may follow, one after the other, and where the acceptance of tokens like each of them is counted
    (Acceptance.cells). In columns: a step of many requests has hundreds."""

    __slots__ = ("cells", "tokens")

    def __init__(self, tokens: list[int], cells: list[int]) -> None:
        self.tokens, self.cells = tokens, cells

    def since(self, begin: int) -> Guesses:
        return Guesses(self.tokens[begin:], self.cells[begin:])

    def joined(self, count: int, more: Guesses) -> Guesses:
        """The first `count`, and more behind them."""
        return Guesses(self.tokens[:count] + more.tokens, self.cells[:count] + more.cells)


NONE = Guesses([], [])


class Outcome(NamedTuple):
    """Of the guesses that the new tokens could be compared with: the first `right`, and the next one if `wrong`."""

    guesses: Guesses
    right: int
    wrong: bool


class Continuation:
    __slots__ = ("asked", "asked_at", "drafted", "expected", "start", "waited")

    def __init__(self, start: int) -> None:
        self.start = start
        self.expected = NONE
        # Length of text and expected tokens that the last question was about, if its answer would still be of use.
        self.asked = NOTHING
        # Length of the text then.
        self.asked_at = NOTHING
        # Length of the last draft, and whether the step waited for it.
        self.drafted = 0
        self.waited = False

    def grow(self, new: list[int]) -> Outcome:
        """The text has gone on."""
        expected, count = self.expected, len(new)
        self.start += count
        if expected.tokens[:count] == new:
            self.expected = expected.since(count)
            return Outcome(expected, count, False)
        least = min(len(expected.tokens), count)
        right = next((at for at in range(least) if expected.tokens[at] != new[at]), least)
        wrong = right < least
        if wrong:
            self.asked = NOTHING
        # Shorter than what is new, or wrong: nothing is left of it.
        self.expected = NONE
        return Outcome(expected, right, wrong)

    def join(self, length: int, guesses: Guesses, recent: Sequence[int]) -> bool:
        """The answer to the question about `length` tokens; `recent` are the text's from there on. False: of no use."""
        if length != self.asked:
            return False
        if length >= self.start:
            self.expected = self.expected.joined(length - self.start, guesses)
            return True
        # It came late: the text may have gone another way meanwhile.
        late = self.start - length
        if self.expected.tokens or guesses.tokens[:late] != list(recent):
            return False
        self.expected = guesses.since(late)
        return True
