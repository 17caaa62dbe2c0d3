"""Copies of stored keys and values, in all layers: pages of branches before a step, and after verification the rows of
the accepted branch. The bits are the same; kernels/paged_attention/cpu_ops.py has the layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np

from kernels.cpu_program import FORK_COUNT, FORKS, Op, compiled, op, op_chunks
from kernels.cpu_vectors import load_i32, store_i32, word
from kernels.paged_attention.cpu_ops import Shape

# Words of a layer.
(KEYS, VALUES, KV_HEADS, KEY_ROWS, KEY_COLUMNS, VALUE_ROWS, VALUE_COLUMNS, PAIR, PAGE_TOKENS, LAYER_WORDS) = range(10)


def layers_of(shapes: Sequence[Shape], pages: Sequence[int]) -> np.ndarray:
    """int64 [layers, LAYER_WORDS]; `pages`: addresses of each layer's keys, then of its values."""
    rows = [
        (
            keys, values, shape.kv_heads, shape.head_dim // shape.pair, shape.key_columns,
            shape.page_tokens // shape.pair, shape.value_columns, shape.pair, shape.page_tokens,
        )
        for shape, keys, values in zip(shapes, pages[::2], pages[1::2], strict=True)
    ]  # fmt: skip
    return np.array(rows, np.int64)


@numba.njit
def _copy(source, target, words):
    for i in range(words):
        store_i32(target, i, load_i32(source, i))


# Words of the op.
_LAYERS, _COUNT = range(2)


@op_chunks
def fork_chunks(args, step):
    return word(step, FORK_COUNT) * word(args, _COUNT)


@op
def fork_pages(args, step, chunk, thread):
    layer = word(args, _LAYERS) + chunk % word(args, _COUNT) * (LAYER_WORDS * 8)
    pair = chunk // word(args, _COUNT)
    source, target = load_i32(word(step, FORKS), pair * 2), load_i32(word(step, FORKS), pair * 2 + 1)
    keys = word(layer, KV_HEADS) * word(layer, KEY_ROWS) * word(layer, KEY_COLUMNS)
    values = word(layer, KV_HEADS) * word(layer, VALUE_ROWS) * word(layer, VALUE_COLUMNS)
    _copy(word(layer, KEYS) + source * keys * 4, word(layer, KEYS) + target * keys * 4, keys)
    _copy(word(layer, VALUES) + source * values * 4, word(layer, VALUES) + target * values * 4, values)


def fork_op(layers: np.ndarray) -> Op:
    """Once, before the first layer: forks are of text that was kept in earlier steps."""
    return Op(fork_pages, fork_chunks, (layers.ctypes.data, len(layers)), (layers,))


@compiled
def _move(layers, pairs):
    for layer in range(layers.shape[0]):
        kv_heads, key_rows, key_columns = layers[layer, KV_HEADS], layers[layer, KEY_ROWS], layers[layer, KEY_COLUMNS]
        value_rows, value_columns = layers[layer, VALUE_ROWS], layers[layer, VALUE_COLUMNS]
        pair, page_tokens = layers[layer, PAIR], layers[layer, PAGE_TOKENS]
        for one in range(pairs.shape[0]):
            from_page, from_at = pairs[one, 0] // page_tokens, pairs[one, 0] % page_tokens
            to_page, to_at = pairs[one, 1] // page_tokens, pairs[one, 1] % page_tokens
            for head in range(kv_heads):
                source = layers[layer, KEYS] + (from_page * kv_heads + head) * key_rows * key_columns * 4
                target = layers[layer, KEYS] + (to_page * kv_heads + head) * key_rows * key_columns * 4
                for i in range(key_rows):
                    store_i32(target, i * key_columns + to_at, load_i32(source, i * key_columns + from_at))
                source = layers[layer, VALUES] + (from_page * kv_heads + head) * value_rows * value_columns * 4
                target = layers[layer, VALUES] + (to_page * kv_heads + head) * value_rows * value_columns * 4
                _move_value(source, from_at, target, to_at, value_columns, pair)


@numba.njit
def _move_value(source, from_at, target, to_at, columns, pair):
    """A value is a line of words, or of halves of words that belong to two tokens."""
    source += from_at // pair * columns * 4
    target += to_at // pair * columns * 4
    if pair == 1:
        _copy(source, target, columns)
        return
    own, others = 16 * (to_at % 2), 16 * (1 - to_at % 2)
    for i in range(columns):
        half = (load_i32(source, i) >> (16 * (from_at % 2))) & 0xFFFF
        kept = (load_i32(target, i) >> others) & 0xFFFF
        store_i32(target, i, np.int32(half << own | kept << others))


def move(layers: np.ndarray, slots: Sequence[tuple[int, int]]) -> None:
    """From the first slot of each pair to the second, in every layer."""
    if slots:
        _move(layers, np.asarray(slots, np.int64))
