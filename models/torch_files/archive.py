"""The zip archive that torch.save writes: its entries, each a piece of the file. Knows nothing of what is in them.

    entry │ entry │ … │ directory │ [zip64 end │ zip64 locator] │ end

Entries are stored, never packed, and none may overlap another: so nothing read from a file is larger than the file.
Bytes from outside: each number is held against the file's size before it is used.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from models.errors import TorchFileError

_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_DIRECTORY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
# A number that stands in a field of 64 bits behind the name.
_ELSEWHERE = 0xFFFFFFFF
_ZIP_64_FIELD = 1
_ENCRYPTED = 1
_CHUNK = 1 << 24
# The first bytes of what torch wrote before it wrote archives (1.6): a number in a pickle.
_BEFORE_1_6 = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    begin: int  # of its local header
    size: int
    crc: int


def read_archive(raw: memoryview) -> dict[str, memoryview]:
    """What is in the file, by name without the folder that all names share. Raises `TorchFileError`."""
    begin, end = _directory(raw)
    entries = list(_entries(raw, begin, end))
    if len({entry.name for entry in entries}) < len(entries):
        raise TorchFileError("two of its entries have the same name")
    pieces = _pieces(raw, entries, begin)
    for entry in entries:
        _check_sum(entry, pieces[entry.name])
    return _without_folder(pieces)


def _directory(raw: memoryview) -> tuple[int, int]:
    """Where it begins and ends."""
    if raw[: len(_BEFORE_1_6)] == _BEFORE_1_6:
        raise TorchFileError("it has the form of torch before 1.6; load it with a newer one and save it again")
    at = len(raw) - _END.size
    if at < 0 or raw[at : at + 4] != b"PK\5\6":
        raise TorchFileError("it is no zip archive that ends where the file ends, or is cut short")
    _, disk, first_disk, _, count, size, begin, comment = _END.unpack_from(raw, at)
    if disk or first_disk or comment:
        raise TorchFileError("its archive has several disks or a comment")
    if at >= _LOCATOR.size and raw[at - _LOCATOR.size :][:4] == b"PK\6\7":
        at, count, size, begin = _directory_64(raw, at - _LOCATOR.size)
    if begin + size != at or count * _DIRECTORY.size > size:
        raise TorchFileError("its directory isn't where the archive says")
    return begin, at


def _directory_64(raw: memoryview, locator: int) -> tuple[int, int, int, int]:
    _, disk, at, disks = _LOCATOR.unpack_from(raw, locator)
    if disk or disks != 1 or at + _END_64.size != locator or raw[at : at + 4] != b"PK\6\6":
        raise TorchFileError("its directory isn't where the archive says")
    *_, count, size, begin = _END_64.unpack_from(raw, at)
    return at, count, size, begin


def _entries(raw: memoryview, at: int, end: int) -> Iterator[Entry]:
    while at < end:
        if at + _DIRECTORY.size > end or raw[at : at + 4] != b"PK\1\2":
            raise TorchFileError("its directory is damaged")
        fields = _DIRECTORY.unpack_from(raw, at)
        flags, method, crc, packed, size = fields[3], fields[4], *fields[7:10]
        name_length, more_length, comment_length, begin = *fields[10:13], fields[16]
        behind = at + _DIRECTORY.size + name_length
        if behind + more_length + comment_length > end:
            raise TorchFileError("its directory is damaged")
        name = _name(bytes(raw[at + _DIRECTORY.size : behind]))
        size, packed, begin = _wide(name, raw[behind : behind + more_length], size, packed, begin)
        if method or size != packed:
            raise TorchFileError(f"its entry {name} is packed (method {method}); torch.save stores entries as they are")
        if flags & _ENCRYPTED:
            raise TorchFileError(f"its entry {name} is encrypted")
        yield Entry(name, begin, size, crc)
        at = behind + more_length + comment_length


def _name(raw: bytes) -> str:
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        name = ""
    # Names are only keys here, and no file is ever made of them.
    if not name.isprintable() or not all(part not in ("", ".", "..") for part in name.split("/")) or "\\" in name:
        raise TorchFileError(f"its entry {raw[:80]!r} has a name that torch.save doesn't write")
    return name


def _wide(name: str, more: memoryview, *numbers: int) -> list[int]:
    """The numbers, those of 64 bits from the field that has them in their order."""
    found = b""
    while len(more) >= 4 and not found:
        kind, length = struct.unpack_from("<2H", more)
        found = bytes(more[4 : 4 + length]) if kind == _ZIP_64_FIELD else b""
        more = more[4 + length :]
    wanted = sum(number == _ELSEWHERE for number in numbers)
    if len(found) < 8 * wanted:
        raise TorchFileError(f"its entry {name} has no size or no place")
    wide = iter(struct.unpack_from(f"<{wanted}Q", found))
    return [next(wide) if number == _ELSEWHERE else number for number in numbers]


def _pieces(raw: memoryview, entries: list[Entry], end: int) -> dict[str, memoryview]:
    """Each behind the one before it, and all before the directory."""
    pieces, free = {}, 0
    for entry in sorted(entries, key=lambda entry: entry.begin):
        if entry.begin < free:
            raise TorchFileError(f"its entry {entry.name} overlaps another")
        first = _behind_header(raw, entry, end)
        free = first + entry.size
        if free > end:
            raise TorchFileError(f"its entry {entry.name} is larger than the file")
        pieces[entry.name] = raw[first:free]
    return pieces


def _behind_header(raw: memoryview, entry: Entry, end: int) -> int:
    first = entry.begin + _LOCAL.size
    if first > end or raw[entry.begin : entry.begin + 4] != b"PK\3\4":
        raise TorchFileError(f"its entry {entry.name} isn't where the archive says")
    name_length, more_length = _LOCAL.unpack_from(raw, entry.begin)[-2:]
    if raw[first : first + name_length] != entry.name.encode():
        raise TorchFileError(f"its entry {entry.name} has another name in its place")
    return first + int(name_length) + int(more_length)


def _check_sum(entry: Entry, piece: memoryview) -> None:
    """torch can be told to write no checksums: all are 0 then."""
    found = 0
    for at in range(0, len(piece) if entry.crc else 0, _CHUNK):
        found = zlib.crc32(piece[at : at + _CHUNK], found)
    if found != entry.crc:
        raise TorchFileError(f"the checksum of its entry {entry.name} is wrong: the file is damaged")


def _without_folder(pieces: dict[str, memoryview]) -> dict[str, memoryview]:
    folders = {name.partition("/")[0] for name in pieces}
    if len(folders) != 1 or not all("/" in name for name in pieces):
        raise TorchFileError("its entries aren't in one folder, as torch.save writes them")
    (folder,) = folders
    return {name.removeprefix(f"{folder}/"): piece for name, piece in pieces.items()}
