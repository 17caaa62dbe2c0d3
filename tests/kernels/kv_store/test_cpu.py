"""What is kept, moved and forked: the same bits elsewhere, and nothing else touched."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kernels.cpu_program import FORK_COUNT, FORKS, Program
from kernels.kv_store.cpu import fork_op, layers_of, move
from kernels.paged_attention.cpu_ops import Shape

PAGES = 5
SHAPES = [("bfloat16", 4, 2, 16, 8), ("bfloat16", 3, 3, 24, 32), ("float32", 4, 1, 6, 16)]


def made(sizes: tuple[str, int, int, int, int]) -> tuple[Shape, list[np.ndarray]]:
    """Two layers, of anything."""
    shape = Shape(*sizes, scale=1.0, rope_width=2)
    chance = np.random.default_rng(1)
    pages = [chance.integers(0, 2**32, (PAGES, words), np.uint32) for words in shape.page_words * 2]
    return shape, pages


def kept_at(shape: Shape, pages: list[np.ndarray], slot: int) -> list[np.ndarray]:
    """A token's keys and values in both layers, as numbers' bits."""
    page, at = divmod(slot, shape.page_tokens)
    kind, found = np.uint16 if shape.pair == 2 else np.uint32, []
    for keys, values in zip(pages[::2], pages[1::2], strict=True):
        k = keys[page].reshape(shape.kv_heads, -1, shape.key_columns)[:, :, at]
        v = values[page].reshape(shape.kv_heads, -1, shape.value_columns)[:, at // shape.pair].view(kind)
        found += [k.copy(), v.reshape(shape.kv_heads, shape.value_columns, -1)[:, :, at % shape.pair].copy()]
    return found


@pytest.mark.parametrize("sizes", SHAPES)
def test_slots_are_moved_and_all_others_stay(sizes: tuple[str, int, int, int, int]) -> None:
    shape, pages = made(sizes)
    layers = layers_of([shape, shape], [each.ctypes.data for each in pages])
    slots = list(range(PAGES * shape.page_tokens))
    chance = random.Random(2)
    for _ in range(20):
        count = chance.randint(0, 6)
        chosen = chance.sample(slots, 2 * count)
        pairs = list(zip(chosen[:count], chosen[count:], strict=True))
        before = [kept_at(shape, pages, slot) for slot in slots]
        move(layers, pairs)
        came_from = {target: source for source, target in pairs}
        for slot in slots:
            for now, then in zip(kept_at(shape, pages, slot), before[came_from.get(slot, slot)], strict=True):
                assert (now == then).all()


@pytest.mark.parametrize("sizes", SHAPES)
def test_a_forked_page_is_the_same_in_every_layer(sizes: tuple[str, int, int, int, int]) -> None:
    shape, pages = made(sizes)
    program = Program([fork_op(layers_of([shape, shape], [each.ctypes.data for each in pages]))], 2)
    before = [each.copy() for each in pages]
    pairs = np.array([1, 3, 1, 4, 2, 0], np.int32)
    program.step[FORKS], program.step[FORK_COUNT] = pairs.ctypes.data, 3
    program.run()
    program.close()
    for now, then in zip(pages, before, strict=True):
        assert (now == then[[2, 1, 2, 1, 1]]).all()
