"""The file of a corpus that is uploaded and not built yet: its texts, one behind the other, and a checksum."""

from __future__ import annotations

import hashlib
import os
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path

_HEAD = struct.Struct("<8sQQ32s")  # magic, texts, tokens, check
_MAGIC = b"SMTEXTS\x01"


class SourceDamaged(Exception):
    """The file is not what was written."""


def write(path: Path, texts: Sequence[array[int]]) -> int:
    """On disk when this returns; the name must be new. Returns the size in bytes."""
    body = b"".join([array("q", map(len, texts)).tobytes(), *(text.tobytes() for text in texts)])
    head = _HEAD.pack(_MAGIC, len(texts), sum(map(len, texts)), _check(body))
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        for part in (head, body):
            left = memoryview(part)
            while left:
                left = left[os.write(file, left) :]
        os.fsync(file)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)
    return len(head) + len(body)


def read(path: Path) -> list[array[int]]:
    data = path.read_bytes()
    if len(data) < _HEAD.size:
        raise SourceDamaged(f"{path}: it was cut")
    magic, texts, tokens, check = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    if magic != _MAGIC or len(body) != 8 * texts + 4 * tokens or check != _check(body):
        raise SourceDamaged(f"{path}: its check doesn't agree")
    lengths, place, found = array("q", body[: 8 * texts].tobytes()), 8 * texts, []
    for length in lengths:
        found.append(array("i", body[place : place + 4 * length].tobytes()))
        place += 4 * length
    return found


def _check(body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=32).digest()
