"""A segment: texts that were learned and change no more, in a mapped file that several processes share. segment_file.py
keeps it, segment_build.py sorts it, segment_loops.py looks things up in it; whose text it is, others know.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from services.proposer.suffix_store import segment_build, segment_file, segment_loops
from services.proposer.suffix_store.native import Ints, Longs
from services.proposer.suffix_store.segment_file import Header, SegmentDamaged, SegmentFile, SegmentForeign
from services.proposer.suffix_store.segment_loops import SEPARATOR, STEP

__all__ = ["Segment", "SegmentDamaged", "SegmentForeign", "merge", "problems"]

# Contexts are told apart as far as that.
DEPTH = 64
# Of a merge: so many places at a time.
_SLICE = 1 << 20


class Segment:
    """Open until it is closed. Then nothing is found at its address; whoever is inside a guess meanwhile crashes."""

    def __init__(self, path: Path, file: SegmentFile) -> None:
        self.path, self._file = path, file
        words = np.zeros(segment_loops.SEGMENT_WORDS, np.int64)
        words[segment_loops.TEXT_AT] = file.text.ctypes.data
        words[segment_loops.POSITIONS_AT] = file.positions.ctypes.data
        words[segment_loops.INDEX_AT] = file.index.ctypes.data
        words[segment_loops.TEXT_WORDS], words[segment_loops.TOKENS] = len(file.text), len(file.positions)
        words[segment_loops.ROWS], words[segment_loops.DEPTH] = len(file.index), file.header.depth
        self.words: Longs = words

    @classmethod
    def build(
        cls, texts: Iterable[Sequence[int]], path: Path, vocabulary: str = "", namespace: str = "", depth: int = DEPTH
    ) -> Segment:
        """ValueError for tokens that aren't token ids. Takes 20 bytes of memory a token meanwhile."""
        parts = [np.asarray(text, np.int32) for text in texts]
        tokens = sum(map(len, parts))
        if any(len(part) and part.min() < 0 for part in parts):
            raise ValueError("token ids are not negative")
        header = Header(vocabulary, namespace, len(parts), tokens, depth)
        with segment_file.written(path, header) as file:
            file.text[0] = SEPARATOR
            at = 1
            for part in parts:
                file.text[at : at + len(part)] = part
                at += len(part) + 1
                file.text[at - 1] = SEPARATOR
            segment_build.sort(file.text, depth, file.positions)
            segment_build.make_index(file.text, file.positions, STEP, file.index)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, vocabulary: str | None = None, namespace: str | None = None) -> Segment:
        """Checked from end to end. SegmentDamaged for what isn't whole, SegmentForeign for what isn't of these."""
        file = segment_file.opened(path)
        for name, wanted in (("vocabulary", vocabulary), ("namespace", namespace)):
            if wanted is not None and getattr(file.header, name) != wanted:
                file.close()
                raise SegmentForeign(f"{path}: of another {name}")
        return cls(path, file)

    @property
    def address(self) -> int:
        """Of its words. They never move."""
        return int(self.words.ctypes.data)

    @property
    def tokens(self) -> int:
        return self._file.header.tokens

    @property
    def texts(self) -> int:
        return self._file.header.texts

    @property
    def vocabulary(self) -> str:
        return self._file.header.vocabulary

    @property
    def namespace(self) -> str:
        return self._file.header.namespace

    @property
    def depth(self) -> int:
        return self._file.header.depth

    def held_bytes(self) -> int:
        """Of the file. Memory holds what is looked at, once for all processes."""
        return len(self._file)

    def close(self) -> None:
        self.words[:] = 0
        self._file.close()

    def read_texts(self) -> Iterator[array[int]]:
        text = self._file.text
        begin = 1
        # A slice at a time: where all separators are would be a list as long as the texts are many.
        for at in range(1, len(text), _SLICE):
            for end in (np.flatnonzero(text[at : at + _SLICE] == SEPARATOR) + at).tolist():
                yield array("i", text[begin:end].tobytes())
                begin = end + 1

    # For merging and for the validator --------------------------------------------------------------------

    def sections(self) -> tuple[Ints, Ints, Ints]:
        """(text, positions, index), where they are mapped."""
        return self._file.text, self._file.positions, self._file.index

    def damage(self) -> list[str]:
        """Sections that are no longer what was written."""
        header = self._file.header
        pairs = zip(segment_file.SECTIONS, self._file.checksums(), header.checksums, strict=True)
        return [f"the {name} has changed" for name, seen, written in pairs if seen != written]


def merge(segments: Sequence[Segment], path: Path, progress: Callable[[int, int], None] | None = None) -> Segment:
    """All their texts, in their order, as if built at once: in time that grows with the tokens, and almost no memory.
    `progress` is told (tokens done, of how many); what it raises ends the merge, and leaves nothing."""
    if len({(each.vocabulary, each.namespace, each.depth) for each in segments}) != 1:
        raise ValueError("segments to merge are of one vocabulary, one namespace and one depth")
    first = segments[0]
    tokens, texts = sum(each.tokens for each in segments), sum(each.texts for each in segments)
    header = Header(first.vocabulary, first.namespace, texts, tokens, first.depth)
    with segment_file.written(path, header) as file:
        sources = np.zeros((len(segments), segment_build.SOURCE_WORDS), np.int64)
        base = 0
        for source, segment in zip(sources, segments, strict=True):
            text, positions, _ = segment.sections()
            # One's last separator is the next one's first.
            file.text[base : base + len(text)] = text
            source[:] = positions.ctypes.data, len(positions), 0, base
            base += len(text) - 1
        for done in range(0, tokens, _SLICE):
            if progress is not None:
                progress(done, tokens)
            segment_build.merge_some(file.text, first.depth, sources, file.positions[done : done + _SLICE])
        segment_build.make_index(file.text, file.positions, STEP, file.index)
        if progress is not None:
            progress(tokens, tokens)
    return Segment.open(path)


# What must hold ---------------------------------------------------------------------------------------------


def problems(segment: Segment) -> list[str]:
    """Says what is wrong instead of failing on it."""
    text, positions, index = segment.sections()
    found = segment.damage()
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
