"""The file of a corpus that is uploaded and not built yet: a checksum, then its texts."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec

from services.proposer.segments.file import sync_folder

_CHECK = 32  # bytes


def write(path: Path, texts: Sequence[array[int]]) -> int:
    """On disk when this returns; the name must be new. Returns the size in bytes."""
    body = msgspec.msgpack.encode([memoryview(text).cast("B") for text in texts])
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        left = memoryview(_check(body) + body)
        while left:
            left = left[os.write(file, left) :]
        os.fsync(file)
        sync_folder(path.parent)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)
    return _CHECK + len(body)


def read(path: Path) -> list[array[int]]:
    """ValueError: the file is not what was written."""
    data = path.read_bytes()
    body = data[_CHECK:]
    if data[:_CHECK] != _check(body):
        raise ValueError("its checksum is wrong")
    texts = [array("i", text) for text in msgspec.msgpack.decode(body, type=list[bytes])]
    if any(min(text, default=0) < 0 for text in texts):
        raise ValueError("token ids are not negative")
    return texts


def _check(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECK).digest()
