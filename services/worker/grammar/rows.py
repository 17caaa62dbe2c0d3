"""The masks of one sequence's rows: what its grammar allows, within what its request allows besides.

What wins where they contradict each other: where nothing but the end follows in the grammar, the text ends, whatever
`min_tokens`, `ignore_eos` and `allowed_token_ids` say.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from services.api import draft_tree as tree
from services.api.sampling import Sampling, stop_ids
from services.worker.grammar.compiled import Grammars
from services.worker.grammar.state import GrammarState, RowMasks


class GrammarRows:
    __slots__ = ("_allowed", "_asked", "_ends", "_first_end", "_held", "state")

    def __init__(self, sampling: Sampling, grammars: Grammars, first_end: int, allowed: np.ndarray | None) -> None:
        """`first_end`: the first position at which the text may end. `allowed`: allowed_token_ids as a mask."""
        size, ends = grammars.vocab_size, grammars.ends
        self.state = GrammarState(sampling.grammar, grammars, stop_ids(sampling, ends))
        self._allowed = None if allowed is None else allowed.view(np.uint32)
        self._ends = _mask(ends, size)
        self._asked = _mask(sampling.stop_token_ids, size)
        self._held = self._ends | self._asked if sampling.min_tokens else self._ends
        # With ignore_eos the text goes on for as long as it can.
        self._first_end = None if sampling.ignore_eos else first_end

    def masks(self, position: int, draft: list[int], parents: list[int]) -> RowMasks:
        """Of the rows of a step: the text ends before `position`."""
        found = self.state.masks(draft, parents)
        depths = [0, *tree.depths(len(draft), parents)] if parents else range(len(draft) + 1)
        for row, depth in enumerate(depths):
            if found.known[row]:
                held = self._first_end is None or position + depth < self._first_end
                found.bits[row] = self._edited(found.bits[row], held)
        return found

    def _edited(self, bits: np.ndarray, held: bool) -> np.ndarray:
        """uint32 [ceil(V / 32)]"""
        end = bits & self._ends
        may_end = end.any()
        if self._allowed is not None:
            bits = bits & self._allowed
        if may_end:
            bits = bits | self._asked
        if held:
            bits = bits & ~self._held
        return bits if bits.any() else end


def _mask(ids: Iterable[int], size: int) -> np.ndarray:
    bits = np.zeros(-(-size // 32) * 32, np.uint8)
    bits[[each for each in ids if 0 <= each < size]] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)
