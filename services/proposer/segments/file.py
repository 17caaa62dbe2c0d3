"""The file of a segment: its layout, written so that a crash leaves all of it or nothing, and checked when it is
opened. Knows bytes and counts; loops.py and build.py know what the sections mean.

    prologue     20 bytes, little-endian: magic "SMSEGMNT", format version u32, bytes of the head u32 (a multiple of
                 4096), crc32 u32 of the head but for these four bytes
    header       JSON: vocabulary, namespace, texts, tokens, depth, and the crc32 of each section; then spaces up to
                 the head's end
    text         int32: -1, the first text, -1, the second, -1 ...: tokens + texts + 1 of them
    positions    int32, one a token: the places of the text's tokens in their order
    index        4 int32 a row: the first four tokens of every 64th position

A section starts at a multiple of 64 and is padded to one with zeros, which its crc32 includes. The places of sections
and the length of the file follow from the counts. A file that was cut, changed, or made by another program raises
SegmentDamaged. Truncating a mapped file would kill the processes that read it: files are only replaced or removed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from services.proposer.native import Ints
from services.proposer.segments.build import MOST_DEPTH
from services.proposer.segments.loops import INDEX_TOKENS, SEPARATOR, STEP

MAGIC, VERSION = b"SMSEGMNT", 1
_PROLOGUE = struct.Struct("<8sIII")
_HEAD_PAGE, _ALIGNED = 4096, 64
_MOST_HEAD = 1 << 20
# Places are 32-bit numbers.
MOST_WORDS = (1 << 31) - 1
# Suffix of a file that is being written. One that a crash left may be removed.
UNFINISHED = ".part"
SECTIONS = ("text", "positions", "index")
_CRC_SLICE = 1 << 24


class SegmentDamaged(Exception):
    """The file is not a whole segment."""


class SegmentForeign(SegmentDamaged):
    """It is of another format, vocabulary or namespace."""


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    vocabulary: str
    namespace: str
    texts: int
    tokens: int
    depth: int
    checksums: tuple[int, int, int] = (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF)

    @property
    def rows(self) -> int:
        return -(-self.tokens // STEP)

    def words(self) -> tuple[int, int, int]:
        """Of each section, in 32-bit words."""
        return self.tokens + self.texts + 1, self.tokens, self.rows * INDEX_TOKENS

    def head_bytes(self) -> int:
        """The checksums are known last: this has room for the longest."""
        widest = msgspec.structs.replace(self, checksums=(0xFFFFFFFF,) * 3)
        return _up(_PROLOGUE.size + len(msgspec.json.encode(widest)), _HEAD_PAGE)


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class SegmentFile:
    """A mapped file: `text`, `positions` and `index` are views of it, and empty once it is closed."""

    def __init__(self, header: Header, mapped: mmap.mmap, head_bytes: int) -> None:
        self.header = header
        self._map, self._head_bytes = mapped, head_bytes
        whole = np.frombuffer(mapped, np.uint8)
        sections = []
        for (begin, _), words in zip(_bounds(header, head_bytes), header.words(), strict=True):
            sections.append(whole[begin : begin + 4 * words].view(np.int32))
        self.text: Ints = sections[0]
        self.positions: Ints = sections[1]
        self.index: Ints = sections[2].reshape(header.rows, INDEX_TOKENS)

    def __len__(self) -> int:
        return len(self._map)

    def checksums(self) -> tuple[int, int, int]:
        """Of the sections' present content."""
        first, second, third = (_crc(self._map, *bounds) for bounds in _bounds(self.header, self._head_bytes))
        return first, second, third

    def close(self) -> None:
        nothing = np.empty(0, np.int32)
        self.text = self.positions = nothing
        self.index = nothing.reshape(0, INDEX_TOKENS)
        # With a view of it still in use, it is unmapped when that goes.
        with contextlib.suppress(BufferError):
            self._map.close()

    def finish(self) -> None:
        """Writes checksums and head; then all of it is on disk."""
        self.header = msgspec.structs.replace(self.header, checksums=self.checksums())
        body = msgspec.json.encode(self.header).ljust(self._head_bytes - _PROLOGUE.size)
        start = _PROLOGUE.pack(MAGIC, VERSION, self._head_bytes, 0)[:-4]
        self._map[: self._head_bytes] = start + struct.pack("<I", zlib.crc32(body, zlib.crc32(start))) + body
        self._map.flush()


def _bounds(header: Header, head_bytes: int) -> list[tuple[int, int]]:
    """(begin, end) of each section."""
    found, begin = [], head_bytes
    for words in header.words():
        end = begin + _up(4 * words, _ALIGNED)
        found.append((begin, end))
        begin = end
    return found


def _crc(mapped: mmap.mmap, begin: int, end: int) -> int:
    found = 0
    with memoryview(mapped) as whole:
        for at in range(begin, end, _CRC_SLICE):
            with whole[at : min(end, at + _CRC_SLICE)] as some:
                found = zlib.crc32(some, found)
    return found


# Writing --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def written(path: Path, header: Header) -> Iterator[SegmentFile]:
    """Sections to fill. The file gets its name once all of it is on disk; if filling fails, nothing is left."""
    if header.words()[0] > MOST_WORDS:
        raise ValueError(f"{header.tokens} tokens of {header.texts} texts are more than one segment holds")
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED)
    try:
        size = _bounds(header, header.head_bytes())[-1][1]
        # Allocated now: a full disk is an error here, and would kill the process when a mapped page is written.
        os.posix_fallocate(descriptor, 0, size)
        unfinished = SegmentFile(header, mmap.mmap(descriptor, size), header.head_bytes())
        try:
            yield unfinished
            unfinished.finish()
        finally:
            unfinished.close()
        os.fsync(descriptor)
        os.replace(name, path)
        _sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Reading --------------------------------------------------------------------------------------------------


def opened(path: Path) -> SegmentFile:
    """Checked, so that no place in it is out of bounds. FileNotFoundError, or SegmentDamaged."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            header, head_bytes = _header(file, size)
        except SegmentDamaged as error:
            raise type(error)(f"{path}: {error}") from None
        mapped = SegmentFile(header, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), head_bytes)
    wrong = _wrong(mapped)
    if wrong:
        mapped.close()
        raise SegmentDamaged(f"{path}: {wrong}")
    return mapped


def _header(file: BinaryIO, size: int) -> tuple[Header, int]:
    """The header, if it is whole and fits the size of the file."""
    start = file.read(_PROLOGUE.size)
    if len(start) < _PROLOGUE.size or not start.startswith(MAGIC):
        raise SegmentDamaged("not a segment")
    _, version, head_bytes, checksum = _PROLOGUE.unpack(start)
    if not _HEAD_PAGE <= head_bytes <= min(size, _MOST_HEAD):
        raise SegmentDamaged("its head is longer than the file, or than any")
    body = file.read(head_bytes - _PROLOGUE.size)
    if zlib.crc32(body, zlib.crc32(start[:-4])) != checksum:
        raise SegmentDamaged("its head is not what was written")
    if version != VERSION:
        raise SegmentForeign(f"format {version}, and not {VERSION}")
    try:
        header = msgspec.json.decode(body, type=Header)
    except msgspec.DecodeError as error:
        raise SegmentDamaged(f"its head: {error}") from None
    if min(header.texts, header.tokens) < 0 or not 0 < header.depth <= MOST_DEPTH or header.words()[0] > MOST_WORDS:
        raise SegmentDamaged("its counts can't be")
    if head_bytes % _HEAD_PAGE or _bounds(header, head_bytes)[-1][1] != size:
        raise SegmentDamaged(f"{size} bytes are not what it should have")
    return header, head_bytes


def _wrong(mapped: SegmentFile) -> str | None:
    """Why look-ups can't rely on it; None: they can."""
    for name, seen, written in zip(SECTIONS, mapped.checksums(), mapped.header.checksums, strict=True):
        if seen != written:
            return f"its {name} is not what was written"
    text, positions = mapped.text, mapped.positions
    if text[0] != SEPARATOR or text[-1] != SEPARATOR or text.min() != SEPARATOR:
        return "its text has no beginning, or no end"
    separators = sum(int(np.count_nonzero(text[at : at + _CRC_SLICE] < 0)) for at in range(0, len(text), _CRC_SLICE))
    if separators != mapped.header.texts + 1:
        return f"{separators - 1} texts, and not {mapped.header.texts}"
    if len(positions) and not (positions.min() > 0 and positions.max() < len(text) - 1):
        return "its positions lead out of it"
    return None
