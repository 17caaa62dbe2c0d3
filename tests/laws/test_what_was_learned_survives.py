"""What proposers have learned survives: a death at any moment costs the last second's learning at most, and whatever is
wrong on the disk, nothing is ever drafted from that was not learned, in that namespace.

The store of the proposer is tried here for real and in a thousand small deaths; library_world.py has the tokens that
tell which text they are of.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from services.proposer.store.library import Bounds, Library

sys.path.insert(0, str(Path(__file__).parents[1] / "services" / "proposer" / "segments"))
sys.path.insert(0, str(Path(__file__).parents[1] / "services" / "proposer" / "store"))

from library_world import Died, Disk, World, hang_up, killed, recent, texts_of
from segment_problems import read_texts

SMALL = Bounds(unsealed_bytes=6000)
NAMESPACES = ("one", "two")
# After each death all that was ever learned in a folder is read.
DEATHS_OF_A_FOLDER = 10


@pytest.fixture
def folder(tmp_path):
    """In memory where that is possible: what is mapped is written through to a disk, again and again."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as place:
        yield Path(place)


def life(world, library):
    """All that a library does to its folder, in order: learning, sealing, making room, merging, corpora."""
    for turn in range(12):
        for namespace in NAMESPACES:
            text = world.begin()
            world.learn(library, namespace, text, 30)
            library.write()
            world.is_sure()
            world.learn(library, namespace, text, 30)
            library.end(namespace, text)
        if turn % 2:
            library.seal("one")
        library.work()
    library.write()
    world.is_sure()
    library.seal("two")
    library.add_corpus("one", "notes", 0, [range(10)], last=True)
    library.work()
    library.remove_corpus("one", "notes")
    library.work()
    counts = library._state.counts
    # More seals than were asked for: there was no room to learn.
    assert counts.merges and counts.seals > 7, "it did less than it should"


# In the fast tests the two ways to die take turns.
@pytest.mark.parametrize(
    ("power_lost", "first", "every"),
    [(False, 1, 2), (True, 2, 2), *(pytest.param(lost, 1, 1, marks=pytest.mark.slow) for lost in (False, True))],
)
def test_a_death_at_any_moment_loses_nothing_that_was_written(folder, monkeypatch, power_lost, first, every):
    """At the first thing that is done to a file, at the second, and so on to the last of a whole life."""
    at, alive = first - every, False
    while not alive:
        at += every
        world = World(folder / str(at), SMALL)
        with monkeypatch.context() as patch:
            disk = Disk(patch, at)
            disk.dies(at)
            library = None
            with suppress(Died):
                library = world.open()
                life(world, library)
                alive = True
            if library is not None:
                killed(library)
            _let_go(world.folder, disk)
            disk.revive(power_lost)
            library = world.open()
            world.check(library)
            world.is_as_found(library)
            # It dies again, while it puts things in order; then it is given the time.
            killed(library)
            library = world.open()
            world.learn(library, "one", world.begin(), 5)
            world.check(library)
            assert library.stats().damaged == 0
            library.close()
        shutil.rmtree(world.folder)
    assert at > 200


@pytest.mark.parametrize("power_lost", [False, True])
def test_a_restarted_process_may_die_again(folder, monkeypatch, power_lost):
    """Taking over what a dead process left, at any moment of that."""
    at, alive = 0, False
    while not alive:
        at += 1
        world = World(folder / str(at), SMALL)
        with monkeypatch.context() as patch:
            disk = Disk(patch, at)
            first = world.open()
            life(world, first)
            world.learn(first, "one", world.begin(), 30)
            world.learn(first, "two", world.begin(), 30)
            first.write()
            world.is_sure()
            killed(first)
            disk.dies(at)
            with suppress(Died):
                second = world.open()
                second.work()
                alive = True
            if alive:
                killed(second)
            _let_go(world.folder, disk)
            disk.revive(power_lost)
            third = world.open()
            world.check(third)
            third.close()
        shutil.rmtree(world.folder)
    assert at > 10


def _let_go(folder, disk):
    """Of a library that died before anybody had it: its locks are this process's open files."""
    for connection in disk.connections:
        hang_up(connection, connection.path)
    disk.connections.clear()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{name}")
            if path.startswith(str(folder)) and path.endswith("/lock"):
                os.close(int(name))


CHILD = """
import sys, time
from pathlib import Path
from services.proposer.store.library import Bounds, Library

folder, first = Path(sys.argv[1]), int(sys.argv[2])
library = Library(folder, "words", Bounds(unsealed_bytes=100_000))
text = first
while True:
    text += 1
    while library.stats().learning_tokens > 10_000:
        # More would not fit. Its other threads seal.
        for space in range(3):
            library.seal(f"space{space}")
        time.sleep(0.001)
    library.learn(f"space{text % 3}", text, [text * 64 + at for at in range(40)])
    library.end(f"space{text % 3}", text)
    if text % 50 == 0:
        library.seal(f"space{text % 7 % 3}")
    if text % 10 == 0:
        # So that it is known what has to be there.
        library.write()
        print(text, flush=True)
"""


def _killed_children(folder, firsts, seconds):
    """Of processes that were killed at some moment: the last text that each said was on disk."""
    children = [
        subprocess.Popen([sys.executable, "-c", CHILD, str(folder), str(first)], stdout=subprocess.PIPE, text=True)
        for first in firsts
    ]
    try:
        lasts = [int(child.stdout.readline()) for child in children]
        # They work meanwhile; what they say isn't read, so that they are killed wherever they are just then.
        select.select([], [], [], seconds)
    finally:
        for child in children:
            child.send_signal(signal.SIGKILL)
            child.wait()
    for at, child in enumerate(children):
        whole = [line for line in child.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        lasts[at] = int(whole[-1]) if whole else lasts[at]
        child.stdout.close()
    return lasts


@pytest.mark.parametrize("deaths", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_processes_that_are_killed_come_back_with_all_they_had_written(folder, deaths):
    """Two of them on one folder, for real."""
    chance = random.Random(deaths)
    for death in range(deaths):
        if death % DEATHS_OF_A_FOLDER == 0:
            world, firsts = World(folder / str(death)), [0, 10_000_000]
        lasts = _killed_children(world.folder, firsts, chance.uniform(0.0, 0.5))
        for first, last in zip(firsts, lasts, strict=True):
            _told(world, range(first + 1, last + 1))
        world.is_sure()
        for last in lasts:
            # Of those that came after, some may be there.
            _told(world, range(last + 1, last + 20))
        library = world.open()
        world.check(library)
        world.is_as_found(library)
        assert library.stats().damaged == 0
        library.close()
        firsts = [last + 20 for last in lasts]


def _told(world, texts):
    for text in texts:
        world.learned.setdefault(f"space{text % 3}", {})[text] = 40
        world.owner[text] = 0


def test_flipped_bits_never_become_text(folder):
    """One bit of one file at a time. What is left out is counted, the rest is there."""
    world = World(folder / "whole", SMALL)
    library = world.open()
    life(world, library)
    world.learn(library, "one", world.begin(), 30)
    library.add_corpus("two", "notes", 0, [range(30)])
    library.work()
    library.write()
    library.close()
    files = sorted(path for path in world.folder.rglob("*") if path.is_file() and path.stat().st_size)
    chance = random.Random(5)
    for round in range(150):
        world.folder = folder / "flipped"
        shutil.copytree(folder / "whole", world.folder)
        path = world.folder / chance.choice(files).relative_to(folder / "whole")
        data = bytearray(path.read_bytes())
        # The beginning says what the rest is.
        place = chance.randrange(min(100, len(data)) if round % 2 else len(data))
        data[place] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        library = world.open()
        world.check(library, complete=False)
        library.corpora("two")
        for segment in library.corpus_segments("two", "notes"):
            assert [list(text) for text in read_texts(segment)] == [list(range(30))]
        # A loss is known, or there is none.
        if not library.stats().damaged:
            world.check(library)
        world.learn(library, "one", world.begin(), 10)
        library.write()
        assert library.stats().failures == 0
        library.close()
        shutil.rmtree(world.folder)


def test_two_processes_know_what_each_other_learned(folder):
    world = World(folder)
    one, other = world.open(), world.open()
    world.learn(one, "shared", world.begin(), 10)
    one.write()
    other.work()
    assert [len(text) for text in recent(other, "shared")] == [10]
    one.seal("shared")
    one.work()
    assert other.segments("shared") == [] and other.version("shared") == 0
    other.work()
    assert other.version("shared") > 0
    world.is_sure()
    world.check(other)
    assert recent(other, "shared") == []
    one.close()
    other.close()


def test_a_folder_of_another_vocabulary_is_not_touched(folder):
    world = World(folder, SMALL)
    library = world.open()
    life(world, library)
    library.close()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    stranger = Library(folder, "other words", threads=False)
    assert texts_of(stranger, "one") == []
    stranger.close()
    assert {path: path.read_bytes() for path in before} == before
