"""The answers of a batch on disk, and which lines have one: how a batch that was killed goes on.

A line is written when its answer is there, so OUT alone says how far a batch came. At a start OUT keeps what has an
answer. A torn last line and errors are left out: those lines are asked again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
from pathlib import Path
from typing import BinaryIO

from services.cli.batch_lines import answered_id

PART = ".part"
# What every line of OUT begins with: so does a torn one, unless it is shorter.
BEGINS = b'{"id":"batch_req_'


class OutError(Exception):
    """OUT can't be used; the message is for the user."""


class Ids:
    """Which custom_ids have an answer or have been met. In a temporary file, so that memory doesn't grow with them."""

    def __init__(self) -> None:
        # Autocommit without a journal: the file is gone with this process anyway.
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = OFF")
        # line 0: answered before, and not met yet.
        self._db.execute("CREATE TABLE ids (id BLOB PRIMARY KEY, line INTEGER NOT NULL) WITHOUT ROWID")

    def add_answered(self, custom_id: str) -> bool:
        """False if it is there already."""
        added = self._db.execute("INSERT OR IGNORE INTO ids VALUES (?, 0)", (_key(custom_id),))
        return added.rowcount == 1

    def meet(self, custom_id: str, number: int) -> int | None:
        """None: it is new. 0: it has been answered before. Else the line where it was met first."""
        key = _key(custom_id)
        if self._db.execute("INSERT OR IGNORE INTO ids VALUES (?, ?)", (key, number)).rowcount == 1:
            return None
        first: int = self._db.execute("SELECT line FROM ids WHERE id = ?", (key,)).fetchone()[0]
        if first == 0:
            self._db.execute("UPDATE ids SET line = ? WHERE id = ?", (number, key))
        return first

    def never_met(self) -> int:
        """Answers of OUT whose line IN doesn't have."""
        count: int = self._db.execute("SELECT COUNT(*) FROM ids WHERE line = 0").fetchone()[0]
        return count

    def close(self) -> None:
        self._db.close()


def _key(custom_id: str) -> bytes:
    return hashlib.blake2b(custom_id.encode(), digest_size=16).digest()


class Out:
    """OUT, open for more lines, by this process alone. Raises OutError."""

    def __init__(self, path: Path, ids: Ids) -> None:
        path = path.resolve()
        if path.exists() and not path.is_file():
            raise OutError(f"{path} is no file: a batch goes on where its file of answers ends")
        self._locked = _locked(path)
        try:
            self.kept = _keep_answers(path, ids)
            # The one that has just taken its place.
            self._file = _locked(path)
        except BaseException:
            self._locked.close()
            raise

    def write(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()

    def close(self) -> None:
        self._file.close()
        self._locked.close()


def _locked(path: Path) -> BinaryIO:
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another one may have put its file there since this one was opened.
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    except BlockingIOError:
        pass
    file.close()
    raise OutError(f"another batch writes {path}")


def _keep_answers(path: Path, ids: Ids) -> int:
    """How many answers OUT has. It is another file then, which replaces the old one whole."""
    kept = 0
    part = path.with_name(path.name + PART)
    try:
        with path.open("rb") as old, part.open("wb") as new:
            for number, line in enumerate(old, 1):
                custom_id = _answered(path, number, line)
                if custom_id is not None and ids.add_answered(custom_id):
                    kept += 1
                    new.write(line)
            new.flush()
            os.fsync(new.fileno())
        part.chmod(path.stat().st_mode & 0o777)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return kept


def _answered(path: Path, number: int, line: bytes) -> str | None:
    """The custom_id of an answer; None: this line is left out."""
    if not line.endswith(b"\n") and _is_torn(line):
        return None
    try:
        return answered_id(line)
    except ValueError as error:
        message = f"{path} isn't what a batch has written (line {number}: {error}): name another file"
        raise OutError(message) from None


def _is_torn(line: bytes) -> bool:
    """After a power failure the rest may be zeros."""
    line = line.rstrip(b"\0")
    return line.startswith(BEGINS) or BEGINS.startswith(line)
