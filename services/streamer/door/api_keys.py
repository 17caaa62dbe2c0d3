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

UNNAMED = "unnamed"


class ApiKeys:
    """`own`: of the settings. Raises ValueError for a file without keys; one that has none later is logged, and the
    keys that it had stay: an editor may be writing it, and a server without keys is open to everyone."""

    def __init__(self, own: Iterable[str] = (), files: Sequence[str] = ()) -> None:
        self._own = tuple(own)
        self._files = tuple(files)
        self._watch = FileWatch(*files)
        self._names = self._read()

    def __len__(self) -> int:
        return len(self._now())

    def know(self, key: bytes) -> bool:
        given = _hash(key)
        # Every key is compared, so the time taken says nothing about which one came close.
        matches = [hmac.compare_digest(given, each) for each in self._now()]
        return any(matches)

    def name(self, key: bytes) -> str:
        """Of a key for metrics; those without a name, or removed by now, have one together."""
        return self._names.get(_hash(key), "") or UNNAMED

    def _now(self) -> dict[bytes, str]:
        if self._files and self._watch.changed():
            try:
                self._names = self._read()
            except ValueError as error:
                log.error("the API keys stay as they were: %s", error)
            else:
                log.info("the API keys were read again: there are %d", len(self._names))
        return self._names

    def _read(self) -> dict[bytes, str]:
        """Hashes and names."""
        found = dict.fromkeys(self._own, "")
        for file in self._files:
            found |= keys_in(file)
        return {_hash(key.encode()): name for key, name in found.items()}


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
