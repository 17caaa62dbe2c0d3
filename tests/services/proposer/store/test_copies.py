"""Copies of a library's folder that are taken file by file while it is used, as `cp -r` and `tar` take them."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from library_world import Clock, recent
from segment_problems import read_texts

from services.proposer.store.library import Library

LATER = [100] * 8
ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def opened(tmp_path):
    found, clock = [], Clock()

    def opened(name):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        found.append(Library(tmp_path / name, "words", now=clock.now, clock=clock.now, threads=False))
        return found[-1]

    yield opened
    for each in found:
        each.close()


def sealed(library, text, count=1):
    for _ in range(count):
        library.learn("a", 0, text)
        library.end("a", 0)
        library.seal("a")
        library.work()


def texts(library):
    library.segments("a")
    library.work()
    return [list(text) for segment in library.segments("a") for text in read_texts(segment)]


def copied(tmp_path, order, meanwhile):
    """Each folder is listed when its turn comes, and each file read when its own comes, if it is still there."""
    [root] = (tmp_path / "live").iterdir()
    copy = tmp_path / "copy" / root.name
    (copy / "segments").mkdir(mode=0o700, parents=True)
    copy.parent.chmod(0o700)
    copy.chmod(0o700)
    for folder in order(["", "segments"]):
        for path in order(sorted(each for each in (root / folder).iterdir() if each.is_file())):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(path, copy / folder / path.name)
            meanwhile()


def shuffled(chance):
    return lambda some: chance.sample(some, len(some))


def learns_on(library):
    sealed(library, [7, 8, 9])
    return [7, 8, 9] in texts(library) and library.stats().failures == 0


@pytest.mark.parametrize("seed", range(8))
def test_a_copy_under_the_lock_with_the_database_first_has_all_that_was_learned_before(opened, tmp_path, seed):
    chance = random.Random(seed)
    live = opened("live")
    before = [[number] * 8 for number in range(1, chance.randrange(3, 12))]
    for text in before:
        sealed(live, text)
    # In no segment yet; it may be in one, which isn't copied, when the database's turn is over.
    live.learn("a", 1, [99] * 8)
    live.end("a", 1)
    live.write()
    with live._folder.building() as ours:
        assert ours
        copied(tmp_path, lambda some: some, lambda: sealed(live, LATER, chance.choice((0, 1, 4))))
    restored = opened("copy")
    found = [*texts(restored), *map(list, recent(restored, "a"))]
    assert [text for text in [*before, [99] * 8] if text not in found] == []
    assert learns_on(restored)


@pytest.mark.parametrize("seed", range(8))
def test_a_copy_without_it_is_a_library_with_nothing_in_it_that_was_not_learned(opened, tmp_path, seed):
    chance = random.Random(seed)
    live = opened("live")
    for number in range(1, 8):
        sealed(live, [number] * 8)
    copied(tmp_path, shuffled(chance), lambda: sealed(live, LATER, chance.choice((0, 1, 4))))
    restored = opened("copy")
    found = texts(restored)
    assert all(text == [text[0]] * 8 and text[0] in (*range(1, 8), 100) for text in found)
    assert learns_on(restored)


def test_segments_that_were_merged_after_the_database_was_copied_are_found(opened, tmp_path):
    live = opened("live")
    for number in range(1, 4):
        sealed(live, [number] * 8)
    # The fourth makes one of them.
    steps = iter([lambda: None] * 3 + [lambda: sealed(live, LATER)])
    copied(tmp_path, lambda some: some, lambda: next(steps, lambda: None)())
    restored = opened("copy")
    found = texts(restored)
    assert [number for number in range(1, 4) if [number] * 8 not in found] == []
    assert restored.stats().damaged == 0
    assert learns_on(restored)


def test_the_commands_of_the_page_make_and_restore_a_copy(opened, tmp_path):
    page = (ROOT / "docs" / "operate" / "operating.md").read_text()
    marked = rf"<!-- run by {Path(__file__).relative_to(ROOT)} -->\n```console\n\$ (.*?)```"
    copy, restore = re.findall(marked, page, re.DOTALL)
    live = opened("home/.cache/specmesh/store")
    sealed(live, [1] * 8)
    live.learn("a", 1, [99] * 8)
    live.end("a", 1)
    live.write()
    for command, home in ((copy, "home"), (restore, "other")):
        (tmp_path / home).mkdir(exist_ok=True)
        subprocess.run(["bash", "-ec", command], env={**os.environ, "HOME": str(tmp_path / home)}, check=True)
        if home == "home":
            (tmp_path / "other").mkdir()
            (tmp_path / "home" / "backup").rename(tmp_path / "other" / "backup")
    restored = opened("other/.cache/specmesh/store")
    assert [*texts(restored), *map(list, recent(restored, "a"))] == [[1] * 8, [99] * 8]
    assert learns_on(restored)
