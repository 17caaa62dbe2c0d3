"""For tests of libraries: tokens that tell which text they are of and where they stood there, processes that die
without a word, disks that keep what was synced and lose what they like of the rest."""

from __future__ import annotations

import os
import random
import stat
from collections import Counter
from pathlib import Path

from segment_problems import problems

from services.proposer.fast.library.library import Bounds, Library

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


def killed(library):
    """What the system does for a process that is gone: its locks are free."""
    library._folder.close()
    library._journals.close()


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


def texts_of(library, namespace):
    """All there is, in segments that are right, and in none yet."""
    library.segments(namespace)
    library.work()
    texts = [text for text in library.recent(namespace) if len(text)]
    for segment in library.segments(namespace):
        assert problems(segment) == []
        texts += [text for text in segment.read_texts() if len(text)]
        library.release(segment)
    return texts


class Clock:
    def __init__(self):
        self.time = 1_000_000.0

    def now(self):
        return self.time
