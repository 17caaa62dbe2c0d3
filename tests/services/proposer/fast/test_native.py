"""Words at an address are those that numpy sees there, of whatever kind, in rows or not."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from services.proposer.fast.native import doubles, ints, kept, long_table_of, longs, part, table_of

KINDS = (np.int32, np.int64, np.float64)
COLUMNS = 3
_wide, _narrow = long_table_of(COLUMNS), table_of(COLUMNS)


@kept
def _copy(ints_at: int, longs_at: int, doubles_at: int, count: int) -> None:
    """Of the first words of each kind, behind themselves."""
    narrow, wide, real = ints(ints_at), longs(longs_at), doubles(doubles_at)
    narrow_to, wide_to, real_to = part(narrow, count), part(wide, count), part(real, count)
    for at in range(count):
        narrow_to[at], wide_to[at], real_to[at] = narrow[at], wide[at], real[at]


@kept
def _transpose(narrow_at: int, wide_at: int, rows: int) -> None:
    """Each row of the one, from its end, becomes that of the other."""
    narrow, wide = _narrow(narrow_at), _wide(wide_at)
    for number in range(rows):
        row = wide[number]
        for word in range(COLUMNS):
            row[COLUMNS - 1 - word] = narrow[number, word]
            narrow[number, word] = 2 * wide[number, COLUMNS - 1 - word]


@kept
def _sum(ints_at: int, count: int) -> int:
    words, total = ints(ints_at), 0
    for at in range(count):
        total += words[at] * words[at]
    return total


def some(kind: Any, count: int, seed: int) -> Any:
    chance = random.Random(seed)
    if kind is np.float64:
        return np.array([chance.uniform(-1e300, 1e300) for _ in range(count)], kind)
    limits = np.iinfo(kind)
    edges = [limits.min, limits.max, -1, 0]
    return np.array([*edges, *(chance.randint(limits.min, limits.max) for _ in range(count - len(edges)))], kind)


@pytest.mark.parametrize("seed", range(3))
def test_words_of_each_kind_are_copied_whole_and_nothing_beside_them(seed: int) -> None:
    count = 20
    memories = [np.concatenate([some(kind, count, seed), np.full(count + 1, 7, kind)]) for kind in KINDS]
    before = [memory.copy() for memory in memories]
    _copy(*(memory.ctypes.data for memory in memories), count)
    for memory, was in zip(memories, before, strict=True):
        assert memory[:count].tolist() == was[:count].tolist() == memory[count:-1].tolist()
        assert memory[-1] == 7


def test_a_table_has_rows_and_a_row_is_its_words() -> None:
    narrow = some(np.int32, 4 * COLUMNS, 1).reshape(4, COLUMNS)
    narrow[narrow == np.iinfo(np.int32).min] = 5
    narrow //= 2
    wide: Any = np.zeros((4, COLUMNS), np.int64)
    was = narrow.copy()
    _transpose(narrow.ctypes.data, wide.ctypes.data, 4)
    assert wide.tolist() == was[:, ::-1].tolist()
    assert narrow.tolist() == (2 * was).tolist()


def test_narrow_words_are_wide_as_soon_as_they_are_read() -> None:
    words = np.array([2**31 - 1, -(2**31)], np.int32)
    assert _sum(words.ctypes.data, 2) == (2**31 - 1) ** 2 + 2**62
