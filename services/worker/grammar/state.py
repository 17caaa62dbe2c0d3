"""How far the text of one sequence has come in its grammar, and which tokens may follow.

    text . . . t | d1 d2 d3        a mask for each row: after t, after d1, after d2, after d3

Drafts are walked along and taken back: only `commit` changes the state. Rows behind a draft token that the grammar
forbids, or that ends the text, have no mask, as nothing is read from them. Knows no sampling.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.api.grammars import GrammarError, problem_of
from services.worker.grammar.compiled import Grammars

# Stop drafting forced tokens when the text has differed from them this often in a row.
MOST_MISSED = 3


@dataclass(slots=True)
class RowMasks:
    """By row: the ids that may follow (uint32 [rows, ceil(V / 32)], bit i % 32 of word i // 32 is id i), and whether
    that is known. By draft token: whether it may follow its row."""

    bits: np.ndarray
    known: np.ndarray  # bool [rows]
    follows: np.ndarray  # bool [rows - 1]


class GrammarState:
    __slots__ = (
        "_ends", "_forced", "_grammar", "_grammars", "_matcher", "_missed", "_text", "_words", "ended", "problem"
    )  # fmt: skip

    def __init__(self, grammar: str, grammars: Grammars, ends: frozenset[int]) -> None:
        """`ends`: all ids that end the text."""
        self._grammar, self._grammars, self._ends = grammar, grammars, ends
        self._words = -(-grammars.vocab_size // 32)
        # Of the grammar, without the token that ended it.
        self._text: list[int] = []
        self.ended = False
        # The first of the tokens that were last forced, and how often in a row the text had another.
        self._forced: int | None = None
        self._missed = 0
        # Why the sequence can't go on; "": it can.
        self.problem = ""
        try:
            self._matcher = grammars.matcher(grammar)
        except GrammarError as error:
            self.problem = str(error)

    def commit(self, tokens: list[int]) -> None:
        """The text continues with these."""
        if self._forced is not None and tokens:
            self._missed = 0 if tokens[0] == self._forced else self._missed + 1
            self._forced = None
        for token in tokens:
            if self.ended or self.problem:
                return
            if token in self._ends:
                self.ended = True
                return
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
        """The tokens of what alone can follow the text, by the tokenizer. Empty where a text has often shown that its
        model writes such in others."""
        if self.ended or self.problem or self._missed >= MOST_MISSED:
            return []
        tokens = self._matcher.compute_ff_tokens()
        if self._matcher.is_error():
            self._restore()
            return []
        self._forced = tokens[0] if tokens else None
        return tokens

    def masks(self, draft: list[int], parents: list[int]) -> RowMasks:
        rows = len(draft) + 1
        found = RowMasks(
            np.zeros((rows, self._words), np.uint32), np.zeros(rows, np.bool_), np.zeros(rows - 1, np.bool_)
        )
        if self.ended or self.problem:
            return found
        if not self._fill(found, 0):
            self._restore()
            if self.problem or not self._fill(found, 0):
                self.problem = self.problem or problem_of(self._matcher)
                return found
        children: list[list[int]] = [[] for _ in range(rows)]
        for index, parent in enumerate(parents or range(-1, len(draft) - 1)):
            children[parent + 1].append(index + 1)
        self._walk(found, draft, children, 0)
        return found

    def _walk(self, found: RowMasks, draft: list[int], children: list[list[int]], row: int) -> bool:
        """Along the draft tokens behind this row. False: the matcher has reached a limit. It is replaced where it is
        asked next: a draft doesn't cost the text its matcher."""
        for child in children[row]:
            token = draft[child - 1]
            if not 0 <= token < self._grammars.vocab_size or not found.bits[row, token >> 5] >> (token & 31) & 1:
                continue
            if token not in self._ends:
                if not self._matcher.consume_token(token) or not self._fill(found, child):
                    return False
                if children[child] and not self._walk(found, draft, children, child):
                    return False
                self._matcher.rollback(1)
            found.follows[child - 1] = True
        return True

    def _fill(self, found: RowMasks, row: int) -> bool:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)[: self._words]
        if self._matcher.is_error():
            return False
        found.bits[row, : len(bits)] = bits
        found.known[row] = True
        return True

    def _restore(self) -> None:
        """The matcher is in error: a new one reads the text again. If that fails, too, the text is at fault."""
        try:
            self._matcher = self._grammars.fresh(self._grammar)
        except GrammarError as error:
            self.problem = str(error)
            return
        if not self._matcher.consume_tokens(self._text):
            self.problem = problem_of(self._matcher)
