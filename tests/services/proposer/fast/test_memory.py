"""Tables' memory: zeros at first, kept as it moves, and used again by others."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import random
import threading

import numpy as np
import pytest

from services.proposer.fast.automaton import memory
from services.proposer.fast.automaton.memory import Block, Memory, Pool


def bytes_of(block: Block) -> bytes:
    return ctypes.string_at(block.address, block.size)


def test_blocks_are_zeros_however_often_they_come_and_go() -> None:
    pool, chance, held = Pool(kept=1 << 18), random.Random(2), []
    for _ in range(2000):
        if held and chance.random() < 0.5:
            pool.give_back(held.pop(chance.randrange(len(held))))
        else:
            block = pool.take(chance.choice([1, 4000, 5000, 70_000]))
            assert not any(bytes_of(block))
            ctypes.memset(block.address, 255, block.size)
            held.append(block)
        assert 0 <= pool.kept <= 1 << 18
    # Nobody has a part of another's.
    ends = sorted((block.address, block.address + block.size) for block in held)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends))
    assert all(set(bytes_of(block)) == {255} for block in held)


def test_what_came_back_is_taken_again() -> None:
    pool = Pool()
    block = pool.take(9000)
    assert block.size == 16384
    pool.give_back(block)
    assert pool.kept == 16384
    assert pool.take(16000) is block and pool.kept == 0


def test_a_region_that_is_full_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_REGION", 8 << 20)
    pool = Pool()
    blocks = [pool.take(1 << 20) for _ in range(20)]
    assert len({id(block.region) for block in blocks}) > 1
    assert len({block.address for block in blocks}) == 20


def resident(block: Block) -> bool:
    there = (ctypes.c_ubyte * 1)()
    page = block.address // mmap.PAGESIZE * mmap.PAGESIZE
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), there) == 0
    return bool(there[0] & 1)


def test_what_is_prepared_is_there_before_it_is_taken() -> None:
    pool = Pool()
    assert not pool.is_prepared()
    pool.prepare()
    assert pool.is_prepared()
    for _ in range(40):
        assert resident(pool.take(1 << 16))
    for _ in range(1 << 6):
        pool.take(1 << 16)
    assert not pool.is_prepared()
    pool.prepare()
    assert pool.is_prepared()


def test_a_forked_process_takes_nothing_of_its_parents() -> None:
    parents = Memory(4)
    parents.lay_out(10)
    parents.set(3, 2, 5)
    child = os.fork()
    if not child:
        wrong = True
        try:
            found = Memory(4)
            found.lay_out(10)
            assert found._block is not None and parents._block is not None
            assert found._block.region is not parents._block.region
            assert not found.copy(10).any() and parents.copy(10)[3, 2] == 5
            wrong = False
        finally:
            os._exit(wrong)
    assert os.waitpid(child, 0)[1] == 0
    parents.close()


def test_preparing_while_others_take_changes_nothing_of_theirs() -> None:
    pool, taken = Pool(), []

    def takes() -> None:
        for _ in range(300):
            block = pool.take(1 << 14)
            ctypes.memset(block.address, 7, block.size)
            taken.append(block)

    others = [threading.Thread(target=takes) for _ in range(3)]
    for each in others:
        each.start()
    while any(each.is_alive() for each in others):
        pool.prepare()
    assert len({block.address for block in taken}) == 900
    assert all(set(bytes_of(block)) == {7} for block in taken)


def test_a_table_that_is_closed_leaves_zeros_to_the_next() -> None:
    first = Memory(4)
    first.lay_out(100)
    first.set(99, 3, 5)
    first.close()
    second = Memory(8)
    second.lay_out(first.rows or 50)
    assert not second.copy(50).any()
    second.close()


def test_memory_moves_and_keeps_its_words() -> None:
    table = Memory(4)
    table.lay_out(10)
    table.set(9, 3, 77)
    before = table.copy(10)
    for rows in (100, 10_000, 60_000, 70_000, 1_000_000, 50):
        table.lay_out(rows)
        assert table.rows >= rows and (table.copy(10) == before).all()
    assert np.count_nonzero(table.copy(1_000_000)) == 1
    table.close()
    assert table.rows == 0


def test_a_large_table_is_of_whole_large_pages_and_keeps_its_words_as_it_moves() -> None:
    table, chance = Memory(5), random.Random(4)
    kept: dict[int, int] = {}
    for rows in (40_000, 500_000, 700_001, 1_300_003):
        table.lay_out(rows)
        for _ in range(200):
            row, value = chance.randrange(rows), chance.randrange(1 << 31)
            table.set(row, 3, value)
            kept[row] = value
        found = table.copy(rows)
        assert {row: found[row, 3] for row in kept} == kept
        assert np.count_nonzero(found) == sum(value != 0 for value in kept.values())
        if rows >= 500_000:
            assert table.rows * 20 > (rows * 20 // (2 << 20)) * (2 << 20)
            assert table._map is not None and len(table._map) % (2 << 20) == 0
    table.close()
