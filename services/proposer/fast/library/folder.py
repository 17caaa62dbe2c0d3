"""The folder of a library, and its locks.

    <format>-<vocabulary>/                  another vocabulary, or format, is another folder
        lock                                held for a moment, to change a namespace
        compacting                          held by the one process that merges and evicts
        journals/<process>.lock             held by that process while it lives
        journals/journal-<process>-<number>
        building/<process>-<number>.*       not there yet: of no use when the process is gone
        spaces/<namespace>/manifest         and the files it names; <namespace> is a hash
        spaces/<namespace>/<process>-<number>.segment

Names of processes are random. A file is added or removed together with the manifest that names it: a file that no
manifest names was left by a crash. Only the owner can read the folder. Knows nothing of tokens.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import itertools
import logging
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from services.proposer.fast.library.journal import files_of, path_of, sync_folder
from services.proposer.fast.library.manifest import Manifest, ManifestDamaged, decode, encode
from services.proposer.fast.owners import owner_of
from services.runtime.own_folder import is_own, make_own_folder

log = logging.getLogger(__name__)

_FORMAT = 1
# The lock is held for milliseconds. A process that was stopped while it holds it must not stop all others.
_PATIENCE = 5.0  # seconds
_MANIFEST = "manifest"
_PRIVATE = "specmesh-library-"

Stamp = tuple[int, int, int]


class Busy(OSError):
    """Another process holds the lock for too long."""


class LibraryFolder:
    def __init__(self, folder: Path, vocabulary: str) -> None:
        self.vocabulary = hashlib.blake2b(vocabulary.encode(), digest_size=16).digest()
        self.instance = secrets.token_hex(8)
        self.root = folder / f"{_FORMAT}-{self.vocabulary.hex()}"
        self.journals, self.building, self._spaces = (self.root / one for one in ("journals", "building", "spaces"))
        for each in (folder, self.root, self.journals, self.building, self._spaces):
            make_own_folder(each, "chmod 700 it, or choose another --store-dir (store_dir)")
        self._numbers = itertools.count(1)
        self._held: dict[str, int] = {}
        self._live()
        # Manifests that could not be read.
        self.damaged = 0

    # Names ------------------------------------------------------------------------------------------------

    def path(self, space: str, file: str) -> Path:
        return self._spaces / space / file

    def new_name(self, ending: str) -> str:
        return f"{self.instance}-{next(self._numbers):08d}.{ending}"

    # Manifests --------------------------------------------------------------------------------------------

    def stamps(self) -> dict[str, Stamp]:
        """Of each manifest: it has changed when its stamp has."""
        found = {}
        for space in os.listdir(self._spaces):
            with suppress(FileNotFoundError, NotADirectoryError):
                stat = os.stat(self._spaces / space / _MANIFEST)
                found[space] = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        return found

    def read(self, space: str) -> Manifest:
        try:
            return decode((self._spaces / space / _MANIFEST).read_bytes())
        except FileNotFoundError:
            return Manifest()
        except ManifestDamaged as error:
            self.damaged += 1
            log.error("the manifest of namespace %s is damaged, its segments are lost: %s", space, error)
            return Manifest()

    def commit(self, space: str, change: Callable[[Manifest], None], bring: Sequence[str] = ()) -> Manifest:
        """Changes a manifest, on disk when this returns. `bring`: files of `building` that it names from now on; files
        that it no longer names are removed."""
        home = self._spaces / space
        with self._locked():
            if not home.is_dir():
                home.mkdir(mode=0o700)
                sync_folder(self._spaces)
            manifest = self.read(space)
            before = manifest.files()
            change(manifest)
            living = self._known_instances()
            manifest.covered = {one: below for one, below in manifest.covered.items() if one in living}
            try:
                for name in bring:
                    sync_file(self.building / name)
                    os.replace(self.building / name, home / name)
                self._write(home, manifest)
            except OSError:
                # A full disk: what isn't named would stay until the next sweep, and more with each attempt.
                self._remove(home, set(bring) - self.read(space).files())
                raise
            self._remove(home, before - manifest.files())
        return manifest

    def _remove(self, home: Path, names: set[str]) -> None:
        for name in names:
            (home / name).unlink(missing_ok=True)

    def drop(self, space: str) -> None:
        """With all its files."""
        with self._locked():
            (self._spaces / space / _MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(self._spaces / space, ignore_errors=True)

    def sweep(self) -> None:
        """Removes what crashes have left."""
        found = os.listdir(self.building)
        # Listed after the files: a process that starts to build meanwhile isn't taken for a dead one.
        living = self._known_instances()
        for name in found:
            if name.lstrip(".")[:16] not in living:
                (self.building / name).unlink(missing_ok=True)
        for name in os.listdir(self.journals):
            if name.endswith(".new") and (file := _lock(self.journals / name)) is not None:
                (self.journals / name).unlink(missing_ok=True)
                os.close(file)
        with self._locked():
            for space in os.listdir(self._spaces):
                home = self._spaces / space
                named = {_MANIFEST, *self.read(space).files()}
                self._remove(home, set(os.listdir(home)) - named)
                if not os.listdir(home):
                    home.rmdir()

    def _write(self, home: Path, manifest: Manifest) -> None:
        fresh = home / f"{_MANIFEST}.new"
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            data = memoryview(encode(manifest))
            while data:
                data = data[os.write(file, data) :]
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(fresh, home / _MANIFEST)
        sync_folder(home)

    # Processes --------------------------------------------------------------------------------------------

    def others(self) -> set[str]:
        """Other processes with a lock or a journal."""
        return self._known_instances() - {self.instance}

    def take_over(self, instance: str) -> bool:
        """Whether that process is dead; its journal then belongs to this one."""
        name = f"{instance}.lock"
        if name in self._held:
            return True
        file = _lock(self.journals / name)
        if file is None:
            return False
        with suppress(FileNotFoundError):
            if os.stat(self.journals / name).st_ino == os.fstat(file).st_ino:
                self._held[name] = file
                return True
        # Another process took it over, and has removed it.
        os.close(file)
        return False

    def forget(self, instance: str) -> None:
        """Removes its journal. Its lock is removed last: until then it can be taken over again."""
        for number in files_of(self.journals).get(instance, []):
            path_of(self.journals, instance, number).unlink(missing_ok=True)
        name = f"{instance}.lock"
        (self.journals / name).unlink(missing_ok=True)
        self._let_go(name)

    @contextmanager
    def compacting(self) -> Iterator[bool]:
        """Whether this process may compact, until the context ends."""
        file = _lock(self.root / "compacting")
        try:
            yield file is not None
        finally:
            if file is not None:
                os.close(file)

    def journal_bytes(self) -> int:
        """Of all processes."""
        total = 0
        for instance, numbers in files_of(self.journals).items():
            for number in numbers:
                with suppress(FileNotFoundError):
                    total += path_of(self.journals, instance, number).stat().st_size
        return total

    def close(self) -> None:
        for name in list(self._held):
            self._let_go(name)

    def _known_instances(self) -> set[str]:
        locks = {name[:16] for name in os.listdir(self.journals) if name.endswith(".lock")}
        return locks | set(files_of(self.journals))

    def _live(self) -> None:
        """The lock gets its name once it is held."""
        name = f"{self.instance}.lock"
        file = _lock(self.journals / f"{name}.new")
        assert file is not None, "a random name is nobody's"
        self._held[name] = file
        os.replace(self.journals / f"{name}.new", self.journals / name)

    def _let_go(self, name: str) -> None:
        file = self._held.pop(name, None)
        if file is not None:
            os.close(file)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        until = time.monotonic() + _PATIENCE
        while (file := _lock(self.root / "lock")) is None:
            if time.monotonic() > until:
                raise Busy("another process holds the library's lock")
            time.sleep(0.002)
        try:
            yield
        finally:
            os.close(file)


@functools.lru_cache(4096)
def space_of(namespace: str) -> str:
    """Of its owner, then of its name. Names may be secrets, or no names of files."""
    return _hash(owner_of(namespace)) + _hash(namespace)


def owner_of_space(space: str) -> str:
    return space[: len(space) // 2]


def _hash(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


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
    lock = _lock(fresh / "lives")
    assert lock is not None, "its name is new"
    folder = place / f"{_PRIVATE}{secrets.token_hex(8)}"
    fresh.rename(folder)
    return folder, lock


def _remove_left(folder: Path) -> None:
    """Of a killed process of this user. Others may write where it is: what they put there is left alone."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if is_own(os.fstat(opened)) and (lock := _lock("lives", opened)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
    finally:
        os.close(opened)


def sync_file(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _lock(path: Path | str, folder: int | None = None) -> int | None:
    """Held until the file is closed. None: another process holds it. `folder`: an open one that the path is in."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except BaseException:
        os.close(file)
        raise
    return file
