"""What must hold of a segment, looked up slowly. Says what is wrong instead of failing on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from services.proposer.native import Ints, Longs
from services.proposer.segments import file as segment_file
from services.proposer.segments.loops import SEPARATOR, STEP
from services.proposer.segments.segment import Segment


def _damage(segment: Segment) -> list[str]:
    """Sections that are no longer what was written."""
    header = segment._file.header
    pairs = zip(segment_file.SECTIONS, segment._file.checksums(), header.checksums, strict=True)
    return [f"the {name} has changed" for name, seen, written in pairs if seen != written]


def problems(segment: Segment) -> list[str]:
    """Says what is wrong instead of failing on it."""
    text, positions, index = segment.sections()
    found = _damage(segment)
    expected = np.flatnonzero(text != SEPARATOR)
    if not np.array_equal(np.sort(positions), expected):
        return [*found, "the positions are not those of the tokens, once each"]
    return [*found, *_order(text, positions, segment.depth), *_index(text, positions, index)]


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


def backwards(text: Sequence[int] | Ints, position: int, depth: int) -> list[int]:
    """The tokens that a position is sorted by."""
    found: list[int] = []
    while len(found) < depth and text[position] != SEPARATOR:
        found.append(int(text[position]))
        position -= 1
    return found


def _index(text: Ints, positions: Ints, index: Ints) -> Iterator[str]:
    wide = index.shape[1]
    for row, position in zip(index.tolist(), positions[::STEP].tolist(), strict=True):
        context = backwards(text, position, wide)
        if row != context + [SEPARATOR] * (wide - len(context)):
            yield f"the index has {row} for position {position}"
