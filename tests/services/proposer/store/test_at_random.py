"""A library against a model of it: what was learned is there once, in the right namespace, in segments or in none yet,
whatever two processes do with one folder, and however often they die."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from library_world import LONGEST, Died, Disk, World, killed

from services.proposer.store.library import Bounds

OPERATIONS_OF_A_LIFE = 400
NAMESPACES = ("one", "two", "three")


@pytest.mark.parametrize("lives", [4, pytest.param(2500, marks=pytest.mark.slow)])
def test_two_processes_that_die_at_random_keep_what_was_written(lives, tmp_path, monkeypatch):
    """Four lives, one with each kind of bounds, are 1600 operations; 2500 are a million."""
    for seed in range(lives):
        with monkeypatch.context() as patch:
            live(random.Random(seed), World(tmp_path / str(seed), _some_bounds(seed)), Disk(patch, seed))


def _some_bounds(seed):
    # Journals are cleaned all the time, or never; segments are cut, or not.
    return Bounds(
        unsealed_bytes=(20_000, 64 << 20)[seed % 2],
        max_tokens=(3000, 100_000_000)[seed // 2 % 2],
    )


def live(chance, world, disk):
    libraries = [world.open(), world.open()]
    # Texts that each process goes on with.
    running = [{}, {}]
    keeps_all = world.bounds.max_tokens > 100_000
    for _ in range(OPERATIONS_OF_A_LIFE):
        who, what = chance.randrange(2), chance.random()
        library, texts = libraries[who], running[who]
        if what < 0.6:
            learn_some(chance, world, library, texts, who)
        elif what < 0.75:
            library.write()
            world.is_sure(who)
        elif what < 0.85:
            library.seal(chance.choice(NAMESPACES))
        elif what < 0.96:
            library.work()
            world.clock.time += 1
        else:
            libraries[who] = come_again(chance, world, disk, library, who, keeps_all)
            texts.clear()
    for who, library in enumerate(libraries):
        library.write()
        world.is_sure(who)
    for library in libraries:
        world.check(library, complete=keeps_all)
        assert library.stats().failures == library.stats().damaged == 0
        if not keeps_all:
            assert library.stats().segments <= 8 * len(NAMESPACES)
            assert library.stats().tokens <= world.bounds.max_tokens * len(NAMESPACES)
        library.close()


def learn_some(chance, world, library, texts, who):
    if not texts or chance.random() < 0.3:
        texts[world.begin(who)] = chance.choice(NAMESPACES)
    text, namespace = chance.choice(list(texts.items()))
    world.learn(library, namespace, text, chance.randint(1, 20))
    if world.learned[namespace][text] == LONGEST or chance.random() < 0.1:
        library.end(namespace, text)
        del texts[text]


def come_again(chance, world, disk, library, who, keeps_all):
    """In order, by a death between two calls, or by one inside of one."""
    how = chance.randrange(3)
    if how == 0:
        library.close()
        world.is_sure(who)
    elif how == 1:
        disk.dies(chance.randint(1, 30))
        with suppress(Died):
            while True:
                library.write()
                library.seal(chance.choice(NAMESPACES))
                library.work()
                learn_some(chance, world, library, {}, who)
    killed(library)
    disk.revive(power_lost=chance.random() < 0.5)
    library = world.open()
    world.check(library, complete=keeps_all)
    if keeps_all:
        world.is_as_found(library, who)
    return library
