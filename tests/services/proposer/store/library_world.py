"""For tests of libraries: tokens that tell which text they are of and where they stood there, processes that die
without a word, disks that keep what was synced and lose what they like of the rest.

sqlite writes to its files itself. A process may die before each of its statements; in a COMMIT, which writes and syncs
the log, it dies with a part of that written.
"""

from __future__ import annotations

import os
import random
import sqlite3
import stat
from array import array
from collections import Counter
from pathlib import Path

from segment_problems import problems, read_texts

from services.proposer.store.files import space_of
from services.proposer.store.library import Bounds, Library

LONGEST = 64  # tokens of a text


class Died(BaseException):
    """The process is gone: nothing that stands in an `except` or `finally` does anything any more."""


class Disk:
    """Counts what is done to files, does no syncing, and lets the process die at one of these moments."""

    CALLS = ("write", "fsync", "replace", "unlink", "mkdir", "rmdir", "open", "posix_fallocate")

    def __init__(self, monkeypatch, seed=0):
        self.done, self.dies_at, self.dead = 0, None, False
        self._random = random.Random(seed)
        self._synced: dict[int, int] = {}
        self._written: dict[int, Path] = {}
        self._real = {name: getattr(os, name) for name in self.CALLS}
        for name in self.CALLS:
            monkeypatch.setattr(os, name, getattr(self, f"_{name}", None) or self._counted(name))
        connect = sqlite3.connect
        disk = self

        class Connection(sqlite3.Connection):
            def execute(self, statement, *values):
                disk._statement(self, statement)
                return super().execute(statement, *values)

            def executemany(self, statement, *values):
                disk._statement(self, statement)
                return super().executemany(statement, *values)

        def connected(path, *args, **options):
            found = connect(path, *args, **options, factory=Connection)
            if path != ":memory:":
                found.path = Path(path)
                self.connections.append(found)
            return found

        self.connections: list[sqlite3.Connection] = []
        monkeypatch.setattr(sqlite3, "connect", connected)

    def dies(self, at):
        self.done, self.dies_at, self.dead = 0, at, False

    def revive(self, power_lost):
        """Another process comes. `power_lost`: what was written and not synced is there in part."""
        self.dies_at, self.dead = None, False
        if power_lost:
            for inode, path in self._written.items():
                if path.exists() and path.stat().st_ino == inode:
                    size = path.stat().st_size
                    os.truncate(path, self._random.randint(min(size, self._synced.get(inode, 0)), size))
        self._written.clear()

    def _moment(self):
        self.done += 1
        if self.dead or self.done == self.dies_at:
            self.dead = True
            raise Died

    def _statement(self, connection, statement):
        try:
            self._moment()
        except Died:
            if statement == "COMMIT" and self.done == self.dies_at:
                before = files_of(connection.path)
                sqlite3.Connection.execute(connection, "COMMIT")
                connection.torn = self._torn(before, files_of(connection.path))
            raise

    def _torn(self, before, after):
        """Of the log, which is written first, up to some byte; only then is something written to the database."""
        (path, (old, new)), (log, (_, log_after)) = zip_files(before, after)
        if self._random.random() < 0.2:
            end = self._random.randint(0, len(new))
            return {path: new[:end] + old[end:] if len(old) == len(new) else new, log: log_after}
        log_before = before.get(log, b"")
        end = self._random.randint(0, len(log_after))
        return {path: old, log: log_after[:end] + log_before[end:]}

    def _counted(self, name):
        def call(*args, **options):
            if name != "open" or (len(args) > 1 and args[1] & os.O_CREAT):
                self._moment()
            return self._real[name](*args, **options)

        return call

    def _write(self, file, data):
        try:
            self._moment()
        except Died:
            if self.done == self.dies_at:
                self._real["write"](file, bytes(data)[: self._random.randint(0, len(data))])
            raise
        told = os.fstat(file)
        if stat.S_ISREG(told.st_mode):
            self._written[told.st_ino] = Path(os.readlink(f"/proc/self/fd/{file}"))
        return self._real["write"](file, data)

    def _fsync(self, file):
        self._moment()
        told = os.fstat(file)
        self._synced[told.st_ino] = told.st_size

    def _replace(self, source, goal):
        self._moment()
        inode = os.stat(source).st_ino
        assert inode in self._synced or os.stat(source).st_size == 0, f"{source} gets its name before it is on disk"
        self._real["replace"](source, goal)
        if inode in self._written:
            self._written[inode] = Path(goal)


def log_of(path):
    return path.with_name(f"{path.name}-wal")


def files_of(path):
    return {each: each.read_bytes() for each in (path, log_of(path)) if each.exists()}


def zip_files(before, after):
    path = min(after, key=lambda each: len(each.name))
    return [(path, (before.get(path, b""), after[path])), (log_of(path), (b"", after.get(log_of(path), b"")))]


def killed(library):
    """What the system does for a process that is gone: its locks are free."""
    library._folder.close()
    hang_up(library._database._connection, library._database.path)


def hang_up(connection, path):
    """Closing would tidy up, if no other process has the database: what was there before is put back."""
    files = getattr(connection, "torn", None) or files_of(path)
    connection.close()
    if not log_of(path).exists():
        for each, data in files.items():
            each.write_bytes(data)


class World:
    """What was ever learned, by namespace: text -> tokens. `sure` of them are on disk."""

    def __init__(self, folder, bounds=None, clock=None):
        self.folder, self.bounds, self.clock = folder, bounds or Bounds(), clock or Clock()
        self.learned: dict[str, dict[int, int]] = {}
        self.sure: dict[str, dict[int, int]] = {}
        # Which process learns a text.
        self.owner: dict[int, int] = {}
        self._next = 0

    def open(self):
        return Library(self.folder, "words", self.bounds, now=self.clock.now, clock=self.clock.now, threads=False)

    def begin(self, owner=0):
        self._next += 1
        self.owner[self._next] = owner
        return self._next

    def learn(self, library, namespace, text, tokens):
        texts = self.learned.setdefault(namespace, {})
        begin = texts.get(text, 0)
        tokens = min(tokens, LONGEST - begin)
        # As before it: perhaps it is learned, although the process dies.
        texts[text] = begin + tokens
        library.learn(namespace, text, [text * LONGEST + at for at in range(begin, begin + tokens)])

    def is_sure(self, owner=0):
        """What that process has learned until now."""
        for namespace, texts in self.learned.items():
            for text, length in texts.items():
                if self.owner[text] == owner:
                    self.sure.setdefault(namespace, {})[text] = length

    def check(self, library, complete=True):
        """Each namespace has pieces of its own texts, no token twice, and all that is sure."""
        for namespace, learned in self.learned.items():
            texts = texts_of(library, namespace)
            for text in texts:
                assert list(text) == list(range(text[0], text[0] + len(text))), "a piece of what was never said"
                assert text[0] // LONGEST == text[-1] // LONGEST, "two texts in one"
                assert text[-1] % LONGEST < learned.get(text[-1] // LONGEST, 0), "a text that was never learned there"
            found = Counter(token for text in texts for token in text)
            assert not found or max(found.values()) == 1, "learned twice"
            if complete:
                for text, length in self.sure.get(namespace, {}).items():
                    missing = [at for at in range(length) if text * LONGEST + at not in found]
                    assert not missing, f"{namespace}: text {text} of {length} has no tokens {missing}"

    def is_as_found(self, library, owner=0):
        """That process died: what was not sure is there, or never comes again."""
        for namespace, learned in self.learned.items():
            found = {token for text in texts_of(library, namespace) for token in text}
            for text in learned:
                if self.owner[text] == owner:
                    learned[text] = sum(text * LONGEST + at in found for at in range(learned[text]))
        self.is_sure(owner)


def recent(library, namespace):
    """Texts that are in no segment yet."""
    library.write()
    texts = {}
    for piece in library._database.pieces(space_of(namespace)):
        if piece.tokens:
            texts.setdefault(piece.text, array("i")).extend(piece.tokens)
    return list(texts.values())


def texts_of(library, namespace):
    """All there is, in segments that are right, and in none yet."""
    library.segments(namespace)
    library.work()
    texts = recent(library, namespace)
    for segment in library.segments(namespace):
        assert problems(segment) == []
        texts += [text for text in read_texts(segment) if len(text)]
        library.release(segment)
    return texts


class Clock:
    def __init__(self):
        self.time = 1_000_000.0

    def now(self):
        return self.time
