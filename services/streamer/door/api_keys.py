"""The API keys that callers may have: those of the settings, and those of files, which are read again when they change.

Keys are held as hashes. Knows no HTTP.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterable, Sequence

from services.api.settings import keys_in
from services.streamer.door.file_watch import FileWatch

log = logging.getLogger("specmesh.streamer")


class ApiKeys:
    """`own`: of the settings. Raises ValueError for a file without keys; one that has none later is logged, and the
    keys that it had stay: an editor may be writing it, and a server without keys is open to everyone."""

    def __init__(self, own: Iterable[str] = (), files: Sequence[str] = ()) -> None:
        self._own = tuple(own)
        self._files = tuple(files)
        self._watch = FileWatch(*files)
        self._hashes = self._read()

    def __len__(self) -> int:
        return len(self._now())

    def know(self, key: bytes) -> bool:
        given = _hash(key)
        # Every key is compared, so the time taken says nothing about which one came close.
        matches = [hmac.compare_digest(given, each) for each in self._now()]
        return any(matches)

    def _now(self) -> tuple[bytes, ...]:
        if self._files and self._watch.changed():
            try:
                self._hashes = self._read()
            except ValueError as error:
                log.error("the API keys stay as they were: %s", error)
            else:
                log.info("the API keys were read again: there are %d", len(self._hashes))
        return self._hashes

    def _read(self) -> tuple[bytes, ...]:
        of_files = [key for file in self._files for key in keys_in(file)]
        return tuple(_hash(key.encode()) for key in dict.fromkeys([*self._own, *of_files]))


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
