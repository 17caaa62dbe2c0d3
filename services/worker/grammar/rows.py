"""The ids that may follow each row of one sequence, where a request limits them in ways that may exclude each other.

    with a grammar     grammar ∩ allowed_token_ids, and stop ids where the grammar may end; without bad words and ends
                       that are held back; if that is nothing: the ends that the grammar allows
    without one        allowed_token_ids without what is forbidden

So where nothing but the end follows in a grammar, the text ends, whatever the other parameters say. A row that nothing
may follow is not known, and neither is one of which the grammar can't tell: a text gets no token there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np

from services.api import draft_tree as tree
from services.api.sampling import Sampling, stop_ids
from services.worker.grammar.compiled import Grammars
from services.worker.grammar.state import GrammarState, RowMasks

Ids = Sequence[int]


class Problem(NamedTuple):
    """`reason` as in Failed: whether the request or the server is at fault."""

    reason: Literal["invalid", "grammar", "engine"]
    message: str


class Rows(Protocol):
    def masks(self, position: int, draft: list[int], parents: list[int], forbidden: Sequence[Ids]) -> RowMasks:
        """Of the rows of a step: the text ends before `position`. `forbidden`: by row, what else may not follow it."""
        ...

    def problem(self) -> Problem:
        """Why no token may follow the text, whose row isn't known."""
        ...


class ListRows:
    """`allowed`: allowed_token_ids as a mask. What is forbidden behind any text is known from the start."""

    __slots__ = ("_allowed", "_fields", "_size")

    def __init__(self, sampling: Sampling, vocab_size: int, allowed: np.ndarray) -> None:
        self._size = vocab_size
        never = [word[0] for word in sampling.bad_words if len(word) == 1]
        self._allowed = allowed.view(np.uint32) & ~_mask(never, vocab_size)
        self._fields = _given(sampling)

    def masks(self, position: int, draft: list[int], parents: list[int], forbidden: Sequence[Ids]) -> RowMasks:
        bits = np.stack([self._allowed & ~_mask(ids, self._size) for ids in forbidden])
        return RowMasks(bits, np.any(bits, axis=1), np.ones(len(draft), np.bool_))

    def problem(self) -> Problem:
        return _nothing_left(self._fields)


class GrammarRows:
    __slots__ = ("_allowed", "_asked", "_ends", "_fields", "_first_end", "_held", "_model_ends", "_more_ends", "_size",
                 "state")  # fmt: skip

    def __init__(self, sampling: Sampling, grammars: Grammars, first_end: int, allowed: np.ndarray | None) -> None:
        """`first_end`: the first position at which the text may end. `allowed`: allowed_token_ids as a mask."""
        size, ends = grammars.vocab_size, grammars.ends
        self.state = GrammarState(sampling.grammar, grammars, stop_ids(sampling, ends))
        self._size = size
        self._fields = _given(sampling)
        self._allowed = None if allowed is None else allowed.view(np.uint32)
        self._ends = _mask(ends, size)
        self._asked = _mask(sampling.stop_token_ids, size)
        self._held = self._ends | self._asked if sampling.min_tokens else self._ends
        # With ignore_eos the text goes on for as long as it can.
        self._first_end = None if sampling.ignore_eos else first_end
        self._model_ends, self._more_ends = ends, bool(sampling.stop_token_ids)

    def masks(self, position: int, draft: list[int], parents: list[int], forbidden: Sequence[Ids]) -> RowMasks:
        found = self.state.masks(draft, parents)
        for row, depth in enumerate([0, *tree.depths(len(draft), parents)]):
            held = self._first_end is None or position + depth < self._first_end
            if found.known[row] and not self._stays(found, row, forbidden[row], held):
                bits = found.bits[row] = self._limited(found.bits[row], forbidden[row], held)
                found.known[row] = bits.any()
        return found

    def problem(self) -> Problem:
        if not self.state.problem:
            return _nothing_left(self._fields)
        return Problem("engine" if self.state.broken else "grammar", f"its grammar: {self.state.problem}")

    def _stays(self, found: RowMasks, row: int, forbidden: Ids, held: bool) -> bool:
        """Whether the mask is the grammar's own, as most are: seen in less time than another is made."""
        if self._allowed is not None or self._more_ends or forbidden:
            return False
        return not held or not any(found.allows(row, token) for token in self._model_ends)

    def _limited(self, grammar: np.ndarray, forbidden: Ids, held: bool) -> np.ndarray:
        """uint32 [ceil(V / 32)]"""
        ends = grammar & self._ends
        bits = grammar if self._allowed is None else grammar & self._allowed
        if ends.any():
            bits = bits | self._asked
        if forbidden:
            bits = bits & ~_mask(forbidden, self._size)
        if held:
            bits = bits & ~self._held
        return bits if bits.any() else ends


def _mask(ids: Iterable[int], size: int) -> np.ndarray:
    bits = np.zeros(-(-size // 32) * 32, np.uint8)
    bits[[each for each in ids if 0 <= each < size]] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def _given(sampling: Sampling) -> list[str]:
    """What of a request may leave no token. Ends that are held back leave those of a grammar."""
    given = {
        "its grammar": sampling.grammar, "allowed_token_ids": sampling.allowed_token_ids,
        "bad_words": sampling.bad_words, "min_tokens": sampling.min_tokens and not sampling.grammar,
    }  # fmt: skip
    return [name for name, value in given.items() if value]


def _nothing_left(fields: list[str]) -> Problem:
    which = f"{', '.join(fields[:-1])} and {fields[-1]}"
    return Problem("invalid", f"no token may follow its text: {which} exclude each other")
