"""Learned text on disk as it came: files that are only appended to, each written by one process.

    file    head: magic, vocabulary, the process's name, its number, salt, check        record  record  record …
    record  mark, length of the body, check, body: kind, where, whose, tokens

A record has the tokens of a text from a place on. So it may be read twice, or be written again in a newer file, and the
text is the same; and a missing record is noticed by what comes after it. The checksum is keyed with the file's salt:
tokens that look like a record, which a caller could choose, are not taken for one. Knows bytes; texts.py makes texts of
them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import struct
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

log = logging.getLogger(__name__)

# Another format is another magic: its files are left alone.
_MAGIC = b"SMJRNL\x00\x01"
# magic, vocabulary, instance, number of the file, salt
_HEAD = struct.Struct("<8s16s8sQ16s")
_CHECK = 8  # bytes
HEAD_BYTES = _HEAD.size + _CHECK
_MARK = b"\xf5rec"
_RECORD = struct.Struct(f"<4sI{_CHECK}s")
# kind, at, text, namespace, and the text as which another process had learned it, or zeros
_BODY = struct.Struct("<B3xIQ16s8sQ")
_LEARNED = 1
# Of one record, in tokens: a longer piece is several.
LONGEST = 1 << 16
_LONGEST_BODY = _BODY.size + 4 * LONGEST
_NOBODY = b"\0" * 8
_NAME = re.compile(r"journal-([0-9a-f]{16})-(\d{8})")

# A process's name, and its number for the text.
Origin = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Record:
    """The tokens of a text of a namespace from number `at` on. `origin`: it was taken over from that process."""

    space: str
    text: int
    at: int
    tokens: array[int]
    origin: Origin | None = None


class Journal:
    """The one that this process writes. Not thread-safe."""

    def __init__(self, folder: Path, instance: str, vocabulary: bytes, file_bytes: int) -> None:
        self._folder, self._instance, self._vocabulary = folder, instance, vocabulary
        self._file_bytes = file_bytes
        self._file = -1
        self._salt = b""
        self._size = 0
        # Each file that is there, with its bytes.
        self.files: dict[int, int] = {}
        self.number = 0

    def append(self, records: list[Record]) -> None:
        """On disk when this returns. OSError: some of them may be; they may be appended again."""
        if not records:
            return
        for some in self._in_files(records):
            self._append(some)
        os.fsync(self._file)

    def _append(self, records: list[bytes]) -> None:
        try:
            _write(self._file, b"".join(records))
        except OSError:
            self._cut_to_whole(records)
            raise
        self._grow(sum(map(len, records)))

    def _cut_to_whole(self, records: list[bytes]) -> None:
        """The disk took a part of them. Those that are whole stay, as others may have read them; nothing is written
        behind half a one."""
        try:
            taken = os.lseek(self._file, 0, os.SEEK_CUR) - self._size
            whole = max(each for each in accumulate(map(len, records), initial=0) if each <= taken)
            os.ftruncate(self._file, self._size + whole)
            os.lseek(self._file, self._size + whole, os.SEEK_SET)
            self._grow(whole)
        except OSError:
            self.finish()

    def _grow(self, size: int) -> None:
        self._size += size
        self.files[self.number] = self._size

    def finish(self) -> None:
        """The next record starts another file."""
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)

    def remove(self, number: int) -> None:
        if number == self.number:
            self.finish()
        path_of(self._folder, self._instance, number).unlink(missing_ok=True)
        self.files.pop(number, None)

    def held_bytes(self) -> int:
        return sum(self.files.values())

    def _in_files(self, records: list[Record]) -> Iterator[list[bytes]]:
        """In pieces of whole records; the file of a piece is open when it is yielded."""
        piece: list[bytes] = []
        waiting = 0
        for record in records:
            if self._file < 0 or self._size + waiting >= self._file_bytes:
                if piece:
                    yield piece
                    piece, waiting = [], 0
                self._begin()
            for body in _bodies(record):
                piece.append(_RECORD.pack(_MARK, len(body), _check(self._salt, self._size + waiting, body)) + body)
                waiting += len(piece[-1])
        yield piece

    def _begin(self) -> None:
        if self._file >= 0:
            os.fsync(self._file)
            self.finish()
        # No number is used twice: a reader may have read the head of a file that is removed here.
        self.number += 1
        self._salt = secrets.token_bytes(16)
        head = _HEAD.pack(_MAGIC, self._vocabulary, bytes.fromhex(self._instance), self.number, self._salt)
        head += _check(b"", 0, head)
        path = path_of(self._folder, self._instance, self.number)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write(file, head)
            sync_folder(self._folder)
        except OSError:
            # A full disk would get another file at each attempt.
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        self._file = file
        self._size = self.files[self.number] = len(head)


class Tail:
    """Reads what one process wrote, from where the last call ended.

    `ended`: that process is dead, so half a record is not waited for."""

    def __init__(self, folder: Path, instance: str, vocabulary: bytes) -> None:
        self._folder, self._instance, self._vocabulary = folder, instance, vocabulary
        self._number = 0
        self._place = 0
        self._salt: bytes | None = None
        self._is_last = False
        # Number of damaged places.
        self.damaged = 0

    def read(self, ended: bool = False) -> list[Record]:
        found: list[Record] = []
        numbers = files_of(self._folder).get(self._instance, [])
        for number in numbers:
            if number > self._number:
                self._number, self._place, self._salt = number, 0, None
            if number == self._number:
                self._is_last = number == numbers[-1]
                with suppress(FileNotFoundError):
                    self._read_file(found, ended or not self._is_last)
        return found

    def _read_file(self, found: list[Record], complete: bool) -> None:
        path = path_of(self._folder, self._instance, self._number)
        with path.open("rb") as file:
            if not self._place:
                self._read_head(file.read(HEAD_BYTES), complete)
            if not self._place or self._salt is None:
                return
            file.seek(self._place)
            data = file.read()
        place = 0
        while place < len(data):
            end = _end_of(data, place, self._place, self._salt)
            if end:
                body = place + _RECORD.size
                if data[body] == _LEARNED:
                    found.append(_record(data, body, end))
                place = end
                continue
            after = _next_whole(data, place, self._place, self._salt)
            if after is None and not complete:
                # It may be being written now.
                break
            self._skip(path, self._place + place, after is None)
            place = len(data) if after is None else after
        self._place += place

    def _read_head(self, head: bytes, complete: bool) -> None:
        if len(head) < HEAD_BYTES and not complete:
            return
        self._place = HEAD_BYTES
        if len(head) < HEAD_BYTES:
            return
        magic, vocabulary, instance, number, salt = _HEAD.unpack(head[: _HEAD.size])
        named = (_MAGIC, self._vocabulary, bytes.fromhex(self._instance), self._number)
        if head[_HEAD.size :] == _check(b"", 0, head[: _HEAD.size]) and (magic, vocabulary, instance, number) == named:
            self._salt = salt
        else:
            self._skip(path_of(self._folder, self._instance, self._number), 0, True)

    def _skip(self, path: Path, place: int, to_the_end: bool) -> None:
        if to_the_end and place and self._is_last:
            # The process died while it wrote.
            log.info("journal %s ends with an incomplete record at byte %d", path.name, place)
            return
        self.damaged += 1
        what = "the rest is ignored" if to_the_end else "reading goes on at the next record"
        log.warning("journal %s is damaged at byte %d: %s", path.name, place, what)


def path_of(folder: Path, instance: str, number: int) -> Path:
    return folder / f"journal-{instance}-{number:08d}"


def files_of(folder: Path) -> dict[str, list[int]]:
    """Processes that have files, with the numbers of the files in order."""
    found: dict[str, list[int]] = {}
    for name in sorted(os.listdir(folder)):
        if match := _NAME.fullmatch(name):
            found.setdefault(match[1], []).append(int(match[2]))
    return found


def sync_folder(folder: Path) -> None:
    """So that new names in it survive a loss of power."""
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _write(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _bodies(record: Record) -> Iterator[bytes]:
    instance, text = record.origin or ("", 0)
    for begin in range(0, len(record.tokens), LONGEST):
        yield (
            _BODY.pack(
                _LEARNED,
                record.at + begin,
                record.text,
                bytes.fromhex(record.space),
                bytes.fromhex(instance) or _NOBODY,
                text,
            )
            + record.tokens[begin : begin + LONGEST].tobytes()
        )


def _record(data: bytes, begin: int, end: int) -> Record:
    _, at, text, space, instance, origin = _BODY.unpack_from(data, begin)
    tokens = array("i")
    tokens.frombytes(memoryview(data)[begin + _BODY.size : end])
    return Record(space.hex(), text, at, tokens, None if instance == _NOBODY else (instance.hex(), origin))


def _check(salt: bytes, place: int, data: bytes | memoryview) -> bytes:
    """Of the bytes and their place in the file."""
    found = hashlib.blake2b(place.to_bytes(8, "little"), key=salt, digest_size=_CHECK)
    found.update(data)
    return found.digest()


def _end_of(data: bytes, begin: int, base: int, salt: bytes) -> int:
    """The end of the record at `begin`; 0: there is none. `base`: the place of data in the file."""
    if begin + _RECORD.size > len(data):
        return 0
    mark, length, check = _RECORD.unpack_from(data, begin)
    end: int = begin + _RECORD.size + length
    if mark != _MARK or end > len(data) or not _BODY.size <= length <= _LONGEST_BODY or (length - _BODY.size) % 4:
        return 0
    return end if check == _check(salt, base + begin, memoryview(data)[begin + _RECORD.size : end]) else 0


def _next_whole(data: bytes, begin: int, base: int, salt: bytes) -> int | None:
    """The first record behind a damaged place."""
    place = data.find(_MARK, begin + 1)
    while place >= 0:
        if _end_of(data, place, base, salt):
            return place
        place = data.find(_MARK, place + 1)
    return None
