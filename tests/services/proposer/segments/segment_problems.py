"""What must hold of a segment, looked up slowly. Says what is wrong instead of failing on it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from services.proposer.native import Ints, Longs
from services.proposer.segments.loops import SEPARATOR
from services.proposer.segments.segment import Segment


def read_texts(segment: Segment) -> list[array[int]]:
    """Its texts, in their order."""
    text, _ = segment.sections()
    ends = np.flatnonzero(text == SEPARATOR).tolist()
    return [array("i", text[begin + 1 : end].tobytes()) for begin, end in pairwise(ends)]


def problems(segment: Segment) -> list[str]:
    """Says what is wrong instead of failing on it."""
    text, positions = segment.sections()
    found = ["it has changed"] if segment._file.checksum() != segment._file.header.checksum else []
    expected = np.flatnonzero(text != SEPARATOR)
    if not np.array_equal(np.sort(positions), expected):
        return [*found, "the positions are not those of the tokens, once each"]
    return [*found, *_order(text, positions, segment.depth)]


def _order(text: Ints, positions: Ints, depth: int) -> Iterator[str]:
    """Of two neighbours the first token that differs decides, backwards; the end of a text stands before all tokens
    (it is the least number), and where nothing differs, the places decide."""
    before, after = positions[:-1].astype(np.int64), positions[1:].astype(np.int64)
    for back in range(depth):
        one, other = text[before - back], text[after - back]
        same, over = one == other, one == SEPARATOR
        yield from _wrong(before, after, (one > other) | (same & over & (before > after)))
        alike = same & ~over
        before, after = before[alike], after[alike]
    yield from _wrong(before, after, before > after)


def _wrong(before: Longs, after: Longs, where: npt.NDArray[np.bool_]) -> Iterator[str]:
    for one, other in zip(before[where].tolist(), after[where].tolist(), strict=True):
        yield f"{one} stands before {other}"
