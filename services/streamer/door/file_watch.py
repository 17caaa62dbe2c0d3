"""Tells whether files have changed, by time, size and inode. There is no timer: whoever uses a file asks each time,
which takes a microsecond a file."""

from __future__ import annotations

import os


class FileWatch:
    def __init__(self, *paths: str) -> None:
        self._paths = paths
        self._seen = self._look()

    def changed(self) -> bool:
        """Since it was asked last. A file that is replaced, also by a link to another, has changed."""
        if (now := self._look()) == self._seen:
            return False
        self._seen = now
        return True

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_stat(path) for path in self._paths]


def _stat(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
