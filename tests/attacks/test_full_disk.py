"""The disk of the store is full for ten minutes, then there is room again."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "services" / "proposer" / "segments"))
sys.path.insert(0, str(Path(__file__).parents[1] / "services" / "proposer" / "store"))

from library_world import Clock, recent

from services.proposer.store.library import Library

MINUTES = 10


class FullDisk:
    """Takes what there is room for, as a disk does, and counts the attempts. A database of sqlite can't grow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, connection: sqlite3.Connection) -> None:
        self.room, self.refused = 1 << 40, 0
        self._connection = connection
        self._write, self._allocate = os.write, os.posix_fallocate
        monkeypatch.setattr(os, "write", self.write)
        monkeypatch.setattr(os, "posix_fallocate", self.allocate)

    def give(self, room: int) -> None:
        self.room = room
        [pages] = self._connection.execute("PRAGMA page_count").fetchone()
        self._connection.execute(f"PRAGMA max_page_count = {pages + room // 4096}")

    def write(self, file: int, data: Any) -> int:
        if not self.room:
            self.refuse()
        written = self._write(file, bytes(data)[: self.room])
        self.room -= written
        return written

    def allocate(self, file: int, begin: int, size: int) -> None:
        if size > self.room:
            self.refuse()
        self._allocate(file, begin, size)
        self.room -= size

    def refuse(self) -> None:
        self.refused += 1
        raise OSError(errno.ENOSPC, "No space left on device")


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def tick(library: Library, clock: Clock, seconds: float) -> None:
    """What the two threads do in this time."""
    for half in range(int(2 * seconds)):
        clock.time += 0.5
        library._steps.do(library.write)
        if half % 2:
            library.work()


def test_a_full_disk_gets_no_new_files_and_one_line_and_later_what_was_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    library = Library(tmp_path, "words", now=clock.now, clock=clock.now, threads=False)
    disk = FullDisk(monkeypatch, library._database._connection)
    library.learn("key/1", 1, [1, 2, 3])
    tick(library, clock, 1)
    before = files(tmp_path)
    disk.give(100)
    for minute in range(MINUTES):
        library.learn("key/1", 1, [minute] * 2000)
        library.learn(f"other/{minute}", 100 + minute, [7] * 50)
        library.seal("key/1")
        tick(library, clock, 60)
        assert library.stats().unwritable == 1
    assert files(tmp_path) == before
    assert disk.refused < 4 * MINUTES * 2
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 1 and "disk is full" in told[0]

    disk.give(1 << 40)
    tick(library, clock, 40)
    stats = library.stats()
    assert (stats.unwritable, stats.learning_tokens) == (0, 50 * MINUTES)
    library.close()
    again = Library(tmp_path, "words", threads=False)
    assert again.stats().tokens == 3 + 2000 * MINUTES
    assert sum(map(len, recent(again, "other/9"))) == 50
    again.close()
