"""The place of one sequence's text in its grammar, and the tokens that may follow it there.

    text . . . t | d1 d2 d3        row 0 is behind t, row 1 behind d1, …: each has a mask of the ids that may follow

Only `commit` moves the place. For the masks of a draft's rows copies of the matcher go along the draft; none is rolled
back: a matcher keeps its last mask by its lexer's state and the number of its row, so behind a rollback it may give the
mask of a row that is gone. There is no mask behind a token that the grammar forbids, behind one that ends the text, and
behind one at which a matcher reaches a limit. Knows no sampling.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from services.api.grammars import GrammarError, problem_of
from services.worker.grammar.compiled import Grammars
from services.worker.grammar.spaces import Spaces

if TYPE_CHECKING:
    from llguidance import LLMatcher

log = logging.getLogger("specmesh.worker")

# Stop drafting forced tokens when the text has differed from them this often in a row.
MOST_MISSED = 3


@dataclass(slots=True)
class RowMasks:
    """`bits` of a row are the ids that may follow it: bit i % 32 of word i // 32 is id i. They count where the row is
    `known`. `follows`: whether a draft token is among the ids of the row it follows."""

    bits: np.ndarray  # uint32 [rows, ceil(V / 32)]
    known: np.ndarray  # bool [rows]
    follows: np.ndarray  # bool [rows - 1]

    @classmethod
    def empty(cls, rows: int, words: int) -> RowMasks:
        return cls(np.zeros((rows, words), np.uint32), np.zeros(rows, np.bool_), np.zeros(rows - 1, np.bool_))

    def allows(self, row: int, token: int) -> bool:
        words = self.bits.shape[1]
        return 0 <= token < 32 * words and bool(self.bits.item(row, token // 32) >> token % 32 & 1)


class GrammarState:
    __slots__ = (
        "_ends", "_forced", "_grammar", "_grammars", "_matcher", "_missed", "_spaces", "_text", "_words", "broken",
        "ended", "guess", "problem",
    )  # fmt: skip

    def __init__(self, grammar: str, grammars: Grammars, ends: frozenset[int]) -> None:
        """`ends`: all ids that end the text."""
        self._grammar, self._grammars, self._ends = grammar, grammars, ends
        self._words = -(-grammars.vocab_size // 32)
        # The committed tokens, without the one that ended the text: a new matcher reads them again.
        self._text: list[int] = []
        self.ended = False
        # The first of the tokens that were last forced, and how often in a row the text had another.
        self._forced: int | None = None
        self._missed = 0
        self._spaces = Spaces(grammars.bytes_of)
        # White space that was drafted behind the text.
        self.guess: int | None = None
        # Why the sequence can't go on; "": it can.
        self.problem = ""
        # Whether that is the server's fault: it has committed a token that the grammar forbids.
        self.broken = False
        try:
            self._matcher = grammars.matcher(grammar)
        except GrammarError as error:
            self.problem = str(error)

    def commit(self, tokens: list[int]) -> None:
        """The text continues with these."""
        if self._forced is not None and tokens:
            self._missed = 0 if tokens[0] == self._forced else self._missed + 1
            self._forced = None
        if self.guess is not None and tokens:
            if tokens[0] != self.guess:
                self._spaces.missed(self._text[-1], self.guess)
            self.guess = None
        for token in tokens:
            if self.ended or self.problem:
                return
            if token in self._ends:
                self.ended = True
                return
            if self._text:
                self._spaces.saw(self._text[-1], token)
            self._text.append(token)
            if not self._matcher.consume_token(token):
                self._restore()

    def follow(self, tokens: list[int]) -> int:
        """How many of these tokens may follow the text."""
        if not tokens or self.ended or self.problem:
            return 0
        count = self._matcher.validate_tokens(tokens)
        if self._matcher.is_error():
            self._restore()
            return 0
        return count

    def forced(self) -> list[int]:
        """Where one text alone can follow, its tokens as the tokenizer writes it; else none. None either after
        MOST_MISSED texts that the model wrote in other tokens."""
        if self.ended or self.problem or self._missed >= MOST_MISSED:
            return []
        tokens = self._matcher.compute_ff_tokens()
        if self._matcher.is_error():
            self._restore()
            return []
        self._forced = tokens[0] if tokens else None
        return tokens

    def forced_behind(self, draft: list[int]) -> list[int]:
        """The same behind a draft that may follow the text."""
        if not draft:
            return self.forced()
        ahead = self._matcher.deep_copy()
        tokens = ahead.compute_ff_tokens() if ahead.consume_tokens(draft) else []
        return [] if ahead.is_error() else tokens

    def space_behind(self, draft: list[int]) -> int | None:
        """White space that the text has had behind such a token, and may have behind the draft."""
        if self.ended or self.problem or not (last := draft[-1:] or self._text[-1:]):
            return None
        return next((each for each in self._spaces.behind(last[0]) if self.follow([*draft, each]) > len(draft)), None)

    def masks(self, draft: list[int], parents: list[int]) -> RowMasks:
        """Of the text's row and those of a draft behind it (no `parents`: a chain)."""
        found = RowMasks.empty(len(draft) + 1, self._words)
        if self._fill_root(found) and draft:
            children: list[list[int]] = [[] for _ in range(len(draft) + 1)]
            for place, parent in enumerate(parents or range(-1, len(draft) - 1)):
                children[parent + 1].append(place + 1)
            self._walk(found, draft, children, 0, self._matcher.deep_copy())
        return found

    def _fill_root(self, found: RowMasks) -> bool:
        """If the matcher is in error, by the last draft or by this mask, a new one tries again."""
        if not self.ended and not self.problem and not _fill(found, 0, self._matcher):
            self._restore()
            if not self.problem and not _fill(found, 0, self._matcher):
                self.problem = problem_of(self._matcher)
        return bool(found.known[0])

    def _walk(
        self, found: RowMasks, draft: list[int], children: list[list[int]], row: int, matcher: LLMatcher
    ) -> None:
        """Fills the rows below this one, where `matcher` is. A limit that it meets costs the text nothing."""
        for child in children[row]:
            token = draft[child - 1]
            if not found.allows(row, token):
                continue
            found.follows[child - 1] = True
            if token in self._ends:
                continue
            following = matcher if child == children[row][-1] else matcher.deep_copy()
            if following.consume_token(token) and _fill(found, child, following):
                self._walk(found, draft, children, child, following)

    def _restore(self) -> None:
        """A new matcher, which reads the text again. If it fails, too, the text is at fault."""
        try:
            start = self._grammars.fresh(self._grammar)
        except GrammarError as error:
            self.problem = str(error)
            return
        self._matcher = start.deep_copy()
        if not self._matcher.consume_tokens(self._text):
            self.problem = problem_of(self._matcher)
            self.broken = self._leaves(start)
            if self.broken:
                log.error("a token was committed that the text's grammar forbids: %s", self.problem)

    def _leaves(self, start: LLMatcher) -> bool:
        """Whether the text leaves its grammar: the first token that can't follow isn't in the mask of its place. Where
        a limit stops the matcher, there is no mask, or the token is in it."""
        kept = start.validate_tokens(self._text)
        if kept == len(self._text) or not start.consume_tokens(self._text[:kept]):
            return False
        found = RowMasks.empty(1, self._words)
        return _fill(found, 0, start) and not found.allows(0, self._text[kept])


def _fill(found: RowMasks, row: int, matcher: LLMatcher) -> bool:
    """The mask where the matcher is. False: it is in error."""
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint32)[: found.bits.shape[1]]
    if matcher.is_error():
        return False
    found.bits[row, : len(bits)] = bits
    found.known[row] = True
    return True
