"""The database of a library: texts that are in no segment yet, and what there is of segments and corpora.

    pieces          tokens of texts as they came. Ids rise and none is used twice; pieces of one text have one number
    files           see StoredFile
    user_version    counts the changes of files

A transaction is on disk when it ends, or nothing of it is. sqlite notices broken pages, but no flipped bit in a value:
each row has a checksum. A file may have been written by a stranger: the schema has to be ours to the letter, and values
are checked when they are read. Errors of sqlite are OSErrors here.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from services.proposer.store.files import SpaceName, StoredFile

log = logging.getLogger(__name__)

_SCHEMA = (
    "CREATE TABLE pieces (id INTEGER PRIMARY KEY AUTOINCREMENT, space TEXT, text INTEGER, length INTEGER, tokens BLOB,"
    " crc INTEGER)",
    "CREATE INDEX pieces_of_space ON pieces (space, id, length)",
    "CREATE TABLE files (file TEXT PRIMARY KEY, space TEXT, role TEXT, corpus TEXT, tokens INTEGER, texts INTEGER,"
    " bytes INTEGER, born REAL, message TEXT, crc INTEGER)",
)
# Tokens of a piece: more are several.
LONGEST = 1 << 16
# Pieces that are read at a time, and rows of files at most.
_PIECES, _MOST_FILES = 256, 1 << 18
_MOST_BYTES_A_VALUE = 1 << 20
_PAGE = 4096
# A process that was stopped in a transaction must not stop all others.
_PATIENCE = 5.0  # seconds
_OF_THE_DISK = (
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL,
)  # fmt: skip


class DatabaseDamaged(OSError):
    """It isn't what this program wrote."""


class Outdated(Exception):
    """The library has changed meanwhile: what was made from it is deleted."""


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """Some tokens of a text; none in a piece that was damaged."""

    id: int
    space: str
    text: int
    tokens: array[int]


class Database:
    """`first`: no other process has it open. Then it is checked, and DatabaseDamaged is raised here or never. Files are
    named relative to `files`. Thread-safe; `lock` may be held over several calls."""

    def __init__(self, path: Path, files: Path, first: bool, most_bytes: int) -> None:
        self.path, self._files = path, files
        self.lock = threading.RLock()
        # Rows that were ignored.
        self.damaged = 0
        # The last change that is known, all rows then, and whether `look` hasn't told it yet.
        self._seen, self._changed = -1, False
        self._rows: dict[tuple[Any, ...], StoredFile] = {}
        # Pages of the write-ahead log, which is in the bytes of the store.
        self._log_pages = min(1000, max(16, most_bytes // 16 // _PAGE))
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        if not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(f"{path} can't be written")
        self._connection = sqlite3.connect(path, _PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            with self._errors():
                self._open(first)
        except BaseException:
            self._connection.close()
            raise

    def _open(self, first: bool) -> None:
        connection = self._connection
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES_A_VALUE)
        for setting in (
            "trusted_schema = OFF", "cell_size_check = ON", "synchronous = FULL", "secure_delete = OFF",
            f"wal_autocheckpoint = {self._log_pages}", f"journal_size_limit = {self._log_pages * _PAGE}",
        ):  # fmt: skip
            connection.execute(f"PRAGMA {setting}")
        if first and not _schema(connection):
            # It can't be chosen once there is a table.
            connection.execute("PRAGMA auto_vacuum = FULL")
        [mode] = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if first and not _schema(connection):
            with self.transaction():
                for statement in _SCHEMA:
                    connection.execute(statement)
        if mode != "wal":
            raise OSError(f"{self.path}: sqlite can't keep a write-ahead log there")
        if _schema(connection) != _our_schema():
            raise DatabaseDamaged(f"{self.path}: not a library of this format")
        if first:
            self._check()

    def _check(self) -> None:
        """Of all pages: text in no segment yet, so they are few."""
        [found] = self._connection.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise DatabaseDamaged(f"{self.path}: {found}")
        # Its header may say that it can only be read.
        with self.transaction():
            self._connection.execute(f"PRAGMA user_version = {self._version()}")

    def close(self) -> None:
        with self.lock, self._errors():
            self._connection.close()

    def held_bytes(self, full_log: bool = False) -> int:
        log = self._log_pages * _PAGE
        with self.lock, self._errors():
            [pages] = self._connection.execute("PRAGMA page_count").fetchone()
            return int(pages) * _PAGE + (log if full_log else os.stat(f"{self.path}-wal").st_size)

    # Pieces -----------------------------------------------------------------------------------------------

    def add_pieces(self, texts: Iterable[tuple[str, int, array[int]]]) -> None:
        """(namespace, text, tokens)."""
        with self.transaction() as connection:
            for space, text, tokens in texts:
                for begin in range(0, len(tokens), LONGEST):
                    some = tokens[begin : begin + LONGEST]
                    insert = "INSERT INTO pieces (space, text, length, tokens, crc) VALUES (?, ?, ?, ?, ?)"
                    connection.execute(insert, _row((space, text, len(some), some.tobytes())))

    def drop_pieces(self, space: str) -> None:
        with self.transaction() as connection:
            connection.execute("DELETE FROM pieces WHERE space = ?", (space,))

    def stored(self) -> dict[str, tuple[int, int]]:
        """By namespace: tokens and pieces. The namespace without a new piece for the longest time is first."""
        sizes = f"SUM(MAX(0, MIN(IFNULL(length, 0), {LONGEST}))), COUNT(*)"
        query = f"SELECT space, {sizes} FROM pieces WHERE typeof(space) = 'text' GROUP BY space ORDER BY MAX(id)"
        with self.lock, self._errors():
            return {space: (tokens, pieces) for space, tokens, pieces in self._connection.execute(query)}

    def pieces(self, space: str) -> Iterator[StoredPiece]:
        """In the order in which they came."""
        query = "SELECT id, space, text, length, tokens, crc FROM pieces WHERE space = ? AND id > ? ORDER BY id LIMIT ?"
        after = 0
        while True:
            with self.lock, self._errors():
                some = [self._piece(row) for row in self._connection.execute(query, (space, after, _PIECES))]
            if not some:
                return
            yield from some
            after = some[-1].id

    def _piece(self, row: tuple[Any, ...]) -> StoredPiece:
        try:
            space, text, _, data = msgspec.convert(_checked(row[1:]), tuple[SpaceName, int, int, bytes])
            tokens = array("i", data)
            if min(tokens, default=0) < 0:
                raise ValueError("token ids are not negative")
        except ValueError as error:
            self.damaged += 1
            log.error("text of a namespace is lost: piece %s of %s: %s", row[0], self.path, error)
            return StoredPiece(row[0], "", 0, array("i"))
        return StoredPiece(row[0], space, text, tokens)

    # Files ------------------------------------------------------------------------------------------------

    def files(self) -> list[StoredFile]:
        """All of them. The next `look` tells them, too."""
        found = self.look() or {}
        self._seen = -1
        return [each for files in found.values() for each in files]

    def look(self) -> dict[str, list[StoredFile]] | None:
        """The files of each namespace. None: nobody has changed them since the last call."""
        with self.lock, self._errors():
            version = self._version()
            if version == self._seen and not self._changed:
                return None
            if version != self._seen:
                self._read()
            self._seen, self._changed = version, False
            found: dict[str, list[StoredFile]] = {}
            for file in self._rows.values():
                found.setdefault(file.space, []).append(file)
            return found

    def _read(self) -> None:
        """All rows, of which those that were there before aren't checked again."""
        rows: dict[tuple[Any, ...], StoredFile] = {}
        query = f"SELECT * FROM files ORDER BY rowid LIMIT {_MOST_FILES}"
        for row in self._connection.execute(query).fetchall():
            try:
                rows[row] = self._rows.get(row) or msgspec.convert(_checked(row), StoredFile)
            except ValueError as error:
                self.damaged += 1
                log.error("a file is lost: %r in %s: %s", row[0], self.path, error)
                self._connection.execute("DELETE FROM files WHERE file = ?", row[:1])
        self._rows = rows

    def change(
        self,
        add: Sequence[StoredFile] = (),
        remove: Sequence[StoredFile] = (),
        sealed: tuple[str, Sequence[StoredPiece]] | None = None,
    ) -> None:
        """`sealed` are the pieces of a namespace up to the last of them. Outdated: one of these, or of `remove`, is no
        longer there, and nothing has changed."""
        with self.lock:
            with self.transaction() as connection:
                version = self._version()
                for old in remove:
                    if connection.execute("DELETE FROM files WHERE file = ?", (old.file,)).rowcount != 1:
                        raise Outdated
                rows = {_row(msgspec.structs.astuple(new)): new for new in add}
                for row in rows:
                    connection.execute(f"INSERT INTO files VALUES ({', '.join('?' * len(row))})", row)
                if sealed is not None:
                    space, pieces = sealed
                    done = connection.execute("DELETE FROM pieces WHERE space = ? AND id <= ?", (space, pieces[-1].id))
                    if done.rowcount != len(pieces):
                        raise Outdated
                connection.execute(f"PRAGMA user_version = {_after(version)}")
            if version == self._seen:
                self._follow(rows, {old.file for old in remove})
        for old in remove:
            # What stays is swept at the next start.
            with suppress(OSError):
                os.unlink(self._files / old.file)

    def _follow(self, added: dict[tuple[Any, ...], StoredFile], removed: set[str]) -> None:
        """Nobody else has changed the files since the last look: what is there now is known without reading it."""
        self._rows = {row: file for row, file in self._rows.items() if row[0] not in removed} | added
        self._seen, self._changed = _after(self._seen), True

    def sweep(self) -> None:
        """Removes files that are not named: of processes that died. To be called while no other process is there."""
        with self.lock, self._errors():
            named = {file for (file,) in self._connection.execute("SELECT file FROM files")}
        for name in set(os.listdir(self._files)) - named:
            os.unlink(self._files / name)

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    # Transactions -----------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self.lock, self._errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            # The latter: sqlite quotes a broken schema, which may be no text.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            kind = OSError if code in _OF_THE_DISK else DatabaseDamaged
            raise kind(f"{self.path}: {error}") from error


def set_aside(path: Path) -> Path:
    """Another one can be made. One that was set aside before is removed."""
    aside = path.with_name(f"{path.name}.damaged")
    for ending in ("-wal", "-shm"):
        path.with_name(f"{path.name}{ending}").unlink(missing_ok=True)
    os.replace(path, aside)
    return aside


def _after(version: int) -> int:
    """The next number of a change."""
    return (version + 1) % (1 << 31)


# Rows -----------------------------------------------------------------------------------------------------

def _row(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*values, checksum(values))


def _checked(row: Sequence[Any]) -> tuple[Any, ...]:
    *values, crc = row
    if crc != checksum(values):
        raise ValueError("its checksum is wrong")
    return tuple(values)


def checksum(values: Iterable[object]) -> int:
    found = 0
    for value in values:
        found = zlib.crc32(value if isinstance(value, bytes) else repr(value).encode(), found)
    return found


def _schema(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()


def _our_schema() -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in _SCHEMA:
            connection.execute(statement)
        return _schema(connection)
