"""What rank 0 tells the others to do, as whole numbers: one call of an executor each.

    words    how many follow | call | numbers | sizes of arrays | arrays, each padded to 8 bytes

The first `INLINE` words travel in one message of that length, which is all for most steps; the rest in a second one.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

import numpy as np
import torch

from models.batch import Batch
from models.group import Group

FORWARD, COPY, MOVE, PREPARE, HURRY, READ, WRITE = range(7)
INLINE: Final = 512
# A step of 2048 rows with tables of a million tokens each is smaller.
MOST_WORDS: Final = 1 << 28

_WIDE = ("slots", "tile_work", "wanted", "also_slots")  # int64; the other arrays are int32
# In the order in which they are sent.
_NUMBERS = ("table_width", "states_only")
_ARRAYS = tuple(field.name for field in fields(Batch) if field.name not in _NUMBERS)


def call(name: int, *numbers: int) -> np.ndarray:
    return np.array([1 + len(numbers), name, *numbers], np.int64)


def forward_call(batch: Batch) -> np.ndarray:
    arrays = [np.ascontiguousarray(getattr(batch, name), _type(name)) for name in _ARRAYS]
    sizes = [_words(array.nbytes) for array in arrays]
    head = [FORWARD, *(getattr(batch, name) for name in _NUMBERS), *map(len, arrays)]
    words = np.zeros(1 + len(head) + sum(sizes), np.int64)
    words[0] = len(words) - 1
    words[1 : 1 + len(head)] = head
    at = 1 + len(head)
    for array, size in zip(arrays, sizes, strict=True):
        words[at : at + size].view(np.uint8)[: array.nbytes] = array.view(np.uint8)
        at += size
    return words


def batch_of(words: np.ndarray) -> Batch:
    """Of a forward call, without the word that says how many follow."""
    first = 1 + len(_NUMBERS)
    at, found = first + len(_ARRAYS), dict[str, Any]()
    for name, count in zip(_ARRAYS, words[first:at].tolist(), strict=True):
        size = _words(count * np.dtype(_type(name)).itemsize)
        found[name] = words[at : at + size].view(_type(name))[:count]
        at += size
    width, states_only = words[1:first].tolist()
    return Batch(**found, table_width=width, states_only=states_only)


def tell(group: Group, words: np.ndarray) -> None:
    """On rank 0."""
    first = np.zeros(INLINE, np.int64)
    first[: len(words)] = words[:INLINE]
    group.tell(torch.from_numpy(first))
    if len(words) > INLINE:
        group.tell(torch.from_numpy(words[INLINE:]))


def hear(group: Group) -> np.ndarray:
    """On the others: the next call. Blocks until there is one."""
    first = torch.zeros(INLINE, dtype=torch.int64)
    group.tell(first)
    words = first.numpy()
    count = 1 + int(words[0])
    assert 1 < count <= MOST_WORDS
    if count > INLINE:
        rest = torch.zeros(count - INLINE, dtype=torch.int64)
        group.tell(rest)
        words = np.concatenate([words, rest.numpy()])
    return words[1:count]


def _type(name: str) -> type[np.signedinteger]:
    return np.int64 if name in _WIDE else np.int32


def _words(size: int) -> int:
    return -(-size // 8)
