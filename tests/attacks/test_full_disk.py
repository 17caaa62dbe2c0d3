"""The disk of the store is full for ten minutes, then there is room again."""

from __future__ import annotations

import errno
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "services" / "proposer" / "fast"))

from library_world import Clock

from services.proposer.fast.library.library import Library

MINUTES = 10


class FullDisk:
    """Takes what there is room for, as a disk does, and counts the attempts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room, self.refused = 1 << 40, 0
        self._write, self._allocate = os.write, os.posix_fallocate
        monkeypatch.setattr(os, "write", self.write)
        monkeypatch.setattr(os, "posix_fallocate", self.allocate)

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
        library._do(library.write)
        if half % 2:
            library.work()


def test_a_full_disk_gets_no_new_files_and_one_line_and_later_what_was_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    disk, clock = FullDisk(monkeypatch), Clock()
    library = Library(tmp_path, "words", now=clock.now, clock=clock.now, threads=False)
    library.learn("key/1", 1, [1, 2, 3])
    tick(library, clock, 1)
    before, disk.room = files(tmp_path), 100
    for minute in range(MINUTES):
        library.learn("key/1", 1, [minute] * 100)
        library.learn(f"other/{minute}", 100 + minute, [7] * 50)
        library.seal("key/1")
        tick(library, clock, 60)
        assert library.stats().unwritable == 1
    assert len(files(tmp_path)) <= len(before) + 1  # the manifest that is to be written
    assert disk.refused < 4 * MINUTES * 2
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 1 and "No space left on device" in told[0]

    disk.room = 1 << 40
    tick(library, clock, 40)
    stats = library.stats()
    assert (stats.unwritable, stats.unwritten_tokens, stats.learning_tokens) == (0, 0, 50 * MINUTES)
    library.close()
    again = Library(tmp_path, "words", threads=False)
    assert again.stats().tokens == 3 + 100 * MINUTES
    assert sum(map(len, again.recent("other/9"))) == 50
    again.close()
