"""A segment: learned texts that no longer change, in a file that several processes map. file.py reads and writes it,
build.py sorts it, loops.py drafts from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from services.proposer.native import Ints, Record, Records
from services.proposer.segments.build import SOURCE, merge_some, sort
from services.proposer.segments.file import Header, SegmentDamaged, SegmentFile, opened, written
from services.proposer.segments.loops import SEGMENT, SEPARATOR

__all__ = ["Segment", "SegmentDamaged", "merge"]

# Tokens by which places are sorted.
DEPTH = 64
# Places merged at a time.
_SLICE = 1 << 20


class Segment:
    """Open until it is closed; then its address is of an empty one. Not to be closed during a compiled call."""

    def __init__(self, path: Path, file: SegmentFile) -> None:
        self.path, self._file = path, file
        self._record: Record = np.zeros(1, SEGMENT)
        for name, size, section in (("text", "words", file.text), ("positions", "tokens", file.positions)):
            self._record[f"{name}_at"], self._record[size] = section.ctypes.data, len(section)
        self._record["depth"] = file.header.depth
        self.vocabulary, self.namespace = file.header.vocabulary, file.header.namespace
        self.texts, self.tokens, self.depth = file.header.texts, file.header.tokens, file.header.depth

    @classmethod
    def build(
        cls, texts: Iterable[Sequence[int]], path: Path, vocabulary: str = "", namespace: str = "", depth: int = DEPTH
    ) -> Segment:
        """ValueError: not token ids. Needs about 50 bytes of memory a token."""
        parts = [np.asarray(text, np.int32) for text in texts]
        tokens = sum(map(len, parts))
        if any(len(part) and part.min() < 0 for part in parts):
            raise ValueError("token ids are not negative")
        header = Header(vocabulary, namespace, len(parts), tokens, depth)
        with written(path, header) as file:
            file.text[0] = SEPARATOR
            at = 1
            for part in parts:
                file.text[at : at + len(part)] = part
                at += len(part) + 1
                file.text[at - 1] = SEPARATOR
            sort(file.text, depth, file.positions)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, vocabulary: str | None = None, namespace: str | None = None) -> Segment:
        """Checks the whole file. SegmentDamaged: it isn't whole, or of another vocabulary or namespace."""
        segment = cls(path, opened(path))
        for name, wanted in (("vocabulary", vocabulary), ("namespace", namespace)):
            if wanted is not None and getattr(segment, name) != wanted:
                segment.close()
                raise SegmentDamaged(f"{path}: of another {name}")
        return segment

    @property
    def address(self) -> int:
        """Of its record, which never moves."""
        return int(self._record.ctypes.data)

    def held_bytes(self) -> int:
        """Size of the file."""
        return len(self._file)

    def close(self) -> None:
        self._record[:] = np.zeros(1, SEGMENT)
        self._file.close()

    def sections(self) -> tuple[Ints, Ints]:
        """(text, positions), where they are mapped."""
        return self._file.text, self._file.positions


def merge(segments: Sequence[Segment], path: Path, progress: Callable[[int, int], None] | None = None) -> Segment:
    """The same segment as if built from all their texts, in linear time and almost no memory. `progress` is called with
    (tokens done, of how many); if it raises, the merge ends and leaves nothing."""
    if len({(each.vocabulary, each.namespace, each.depth) for each in segments}) != 1:
        raise ValueError("segments to merge are of one vocabulary, one namespace and one depth")
    first = segments[0]
    tokens, texts = sum(each.tokens for each in segments), sum(each.texts for each in segments)
    header = Header(first.vocabulary, first.namespace, texts, tokens, first.depth)
    with written(path, header) as file:
        sources: Records = np.zeros(len(segments), SOURCE)
        base = 0
        for at, segment in enumerate(segments):
            text, positions = segment.sections()
            # The last separator of a segment is the first of the next.
            file.text[base : base + len(text)] = text
            sources[at] = positions.ctypes.data, len(positions), 0, base
            base += len(text) - 1
        for done in range(0, tokens, _SLICE):
            if progress is not None:
                progress(done, tokens)
            merge_some(file.text, first.depth, sources, file.positions[done : done + _SLICE])
        if progress is not None:
            progress(tokens, tokens)
    return Segment.open(path)
