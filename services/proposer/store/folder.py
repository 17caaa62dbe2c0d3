"""The folder of a library, and its locks.

    <format>-<vocabulary>/       another vocabulary, or format, is another folder
        lock                     shared by the processes that have the library open
        building                 held by the one process that merges, evicts and builds corpora
        library.db               the database, and the two files that sqlite keeps beside it
        segments/                files that the database names; others are removed when a process opens it alone

Only this user can read the folder. Knows nothing of tokens.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from services.runtime.own_folder import is_own, make_own_folder

_FORMAT = 3
# For another process that is opening the library: it checks the database, and removes what crashes have left.
_PATIENCE = 20.0  # seconds
_PRIVATE = "specmesh-library-"


class FolderBusy(OSError):
    """Another process holds the lock for too long."""


class LibraryFolder:
    """`alone`: no other process has the library open, or can open it until `let_others_in`."""

    def __init__(self, folder: Path, vocabulary: str) -> None:
        self.vocabulary = hashlib.blake2b(vocabulary.encode(), digest_size=16).hexdigest()
        self.root = folder / f"{_FORMAT}-{self.vocabulary}"
        self.segments, self.database = self.root / "segments", self.root / "library.db"
        for each in (folder, self.root, self.segments):
            make_own_folder(each, "chmod 700 it, or choose another --store-dir (store_dir)")
        self._lock = _open(self.root / "lock")
        try:
            self.alone = self._enter()
        except BaseException:
            self.close()
            raise

    def _enter(self) -> bool:
        until = time.monotonic() + _PATIENCE
        while True:
            for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
                with suppress(BlockingIOError):
                    fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
                    return kind == fcntl.LOCK_EX
            if time.monotonic() > until:
                raise FolderBusy("another process has been opening the library for too long")
            time.sleep(0.01)

    def let_others_in(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        self.alone = False

    def new_name(self, ending: str) -> str:
        return f"{secrets.token_hex(12)}.{ending}"

    @contextmanager
    def building(self) -> Iterator[bool]:
        """Whether this process may merge, evict and build corpora, until the context ends."""
        file = _locked(self.root / "building")
        try:
            yield file is not None
        finally:
            if file is not None:
                os.close(file)

    def close(self) -> None:
        file, self._lock = self._lock, -1
        if file >= 0:
            os.close(file)


def private_folder(max_bytes: int) -> tuple[Path, int]:
    """A folder for this process only, in memory where there is room, and its lock. Folders of killed processes are
    removed."""
    memory = Path("/dev/shm")
    place = Path(tempfile.gettempdir())
    with suppress(OSError):
        stat = os.statvfs(memory)
        if os.access(memory, os.W_OK) and stat.f_bavail * stat.f_frsize >= 2 * max_bytes:
            place = memory
    for left in place.glob(f"{_PRIVATE}*"):
        with suppress(OSError):
            _remove_left(left)
    # It gets its name once it is locked, or it would be taken for one that was left.
    fresh = Path(tempfile.mkdtemp(prefix=".specmesh-", dir=place))
    lock = _locked(fresh / "lives")
    assert lock is not None, "its name is new"
    folder = place / f"{_PRIVATE}{secrets.token_hex(8)}"
    fresh.rename(folder)
    return folder, lock


def _remove_left(folder: Path) -> None:
    """Of a killed process of this user. Others may write where it is: what they put there is left alone."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if is_own(os.fstat(opened)) and (lock := _locked("lives", opened)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
    finally:
        os.close(opened)


def _locked(path: Path | str, folder: int | None = None) -> int | None:
    """Held until the file is closed. None: another process holds it. `folder`: an open one that the path is in."""
    file = _open(path, folder)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except BaseException:
        os.close(file)
        raise
    return file


def _open(path: Path | str, folder: int | None = None) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
