"""The file of a segment: its layout, written so that a crash leaves all of it or nothing, and checked when it is
opened. Knows bytes and counts; loops.py and build.py know what the sections mean.

    prologue     16 bytes, little-endian: magic "SMSEGMNT", format version u32, crc32 u32 of the head but for these four
                 bytes
    header       JSON: vocabulary, namespace, texts, tokens, depth, and the crc32 of text and positions; then spaces
                 up to the 4096 bytes of the head
    text         int32: -1, the first text, -1, the second, -1 ...: tokens + texts + 1 of them
    positions    int32, one a token: the places of the text's tokens in their order

A file that was cut, changed, or made by another program raises SegmentDamaged. Truncating a mapped file would kill the
processes that read it: files are only replaced or removed.
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

import msgspec
import numpy as np

from services.proposer.native import Ints
from services.proposer.segments.loops import SEPARATOR

MAGIC, VERSION = b"SMSEGMNT", 2
_PROLOGUE = struct.Struct("<8sII")
_HEAD = 4096
_MOST_DEPTH = 255
# Places are 32-bit numbers.
_MOST_WORDS = (1 << 31) - 1
# Suffix of a file that is being written. One that a crash left may be removed.
UNFINISHED = ".part"


class SegmentDamaged(Exception):
    """The file is not a whole segment, or not the one that is wanted."""


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    vocabulary: str
    namespace: str
    texts: int
    tokens: int
    depth: int
    checksum: int = 0

    @property
    def words(self) -> int:
        """Of the text."""
        return self.tokens + self.texts + 1

    def file_bytes(self) -> int:
        return _HEAD + 4 * (self.words + self.tokens)


class SegmentFile:
    """A mapped file: `text` and `positions` are views of it, and empty once it is closed."""

    def __init__(self, header: Header, mapped: mmap.mmap) -> None:
        self.header, self._map = header, mapped
        self._sections: Ints = np.frombuffer(mapped, np.int32)[_HEAD // 4 :]
        self.text, self.positions = self._sections[: header.words], self._sections[header.words :]

    def __len__(self) -> int:
        return len(self._map)

    def checksum(self) -> int:
        """Of the sections' present content."""
        return zlib.crc32(self._sections)  # type: ignore[arg-type]

    def close(self) -> None:
        self._sections = self.text = self.positions = np.empty(0, np.int32)
        # With a view of it still in use, it is unmapped when that goes.
        with contextlib.suppress(BufferError):
            self._map.close()

    def finish(self) -> None:
        """Writes checksum and head; then all of it is on disk."""
        self.header = msgspec.structs.replace(self.header, checksum=self.checksum())
        body = msgspec.json.encode(self.header).ljust(_HEAD - _PROLOGUE.size)
        self._map[:_HEAD] = _PROLOGUE.pack(MAGIC, VERSION, _head_checksum(VERSION, body)) + body
        self._map.flush()


def _head_checksum(version: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_PROLOGUE.pack(MAGIC, version, 0)[:-4]))


@contextlib.contextmanager
def written(path: Path, header: Header) -> Iterator[SegmentFile]:
    """Sections to fill. The file gets its name once all of it is on disk; if filling fails, nothing is left."""
    if header.words > _MOST_WORDS:
        raise ValueError(f"{header.tokens} tokens of {header.texts} texts are more than one segment holds")
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED)
    try:
        # Allocated now: a full disk is an error here, and would kill the process when a mapped page is written.
        os.posix_fallocate(descriptor, 0, header.file_bytes())
        unfinished = SegmentFile(header, mmap.mmap(descriptor, header.file_bytes()))
        try:
            yield unfinished
            unfinished.finish()
        finally:
            unfinished.close()
        os.fsync(descriptor)
        os.replace(name, path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """So that new names in it survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def opened(path: Path) -> SegmentFile:
    """Checked, so that no place in it is out of bounds. FileNotFoundError, or SegmentDamaged."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            header = _header(file.read(_HEAD), size)
        except (msgspec.DecodeError, SegmentDamaged) as error:
            raise SegmentDamaged(f"{path}: {error}") from None
        mapped = SegmentFile(header, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
    if wrong := _wrong(mapped):
        mapped.close()
        raise SegmentDamaged(f"{path}: {wrong}")
    return mapped


def _header(head: bytes, size: int) -> Header:
    """The header, if it is whole and fits the size of the file."""
    if len(head) < _HEAD or not head.startswith(MAGIC):
        raise SegmentDamaged("not a segment")
    _, version, checksum = _PROLOGUE.unpack_from(head)
    body = head[_PROLOGUE.size :]
    if checksum != _head_checksum(version, body):
        raise SegmentDamaged("its head is not what was written")
    if version != VERSION:
        raise SegmentDamaged(f"format {version}, and not {VERSION}")
    header = msgspec.json.decode(body, type=Header)
    if min(header.texts, header.tokens) < 0 or not 0 < header.depth <= _MOST_DEPTH or header.words > _MOST_WORDS:
        raise SegmentDamaged("its counts can't be")
    if header.file_bytes() != size:
        raise SegmentDamaged(f"{size} bytes are not what it should have")
    return header


def _wrong(mapped: SegmentFile) -> str:
    """Why look-ups can't rely on it; "": they can."""
    text, positions = mapped.text, mapped.positions
    if mapped.checksum() != mapped.header.checksum:
        return "it is not what was written"
    if text[0] != SEPARATOR or text[-1] != SEPARATOR or text.min() != SEPARATOR:
        return "its text has no beginning, or no end"
    if (separators := int(np.count_nonzero(text == SEPARATOR))) != mapped.header.texts + 1:
        return f"{separators - 1} texts, and not {mapped.header.texts}"
    if len(positions) and not (positions.min() > 0 and positions.max() < len(text) - 1):
        return "its positions lead out of it"
    return ""
