"""Before attention, as an op of the CPU program: q and k of each head normed (if the model does that) and rotated
where the linear left them, k and v put into their pages (kernels/paged_attention/cpu_ops.py has the layout).

q is multiplied by scale · log2 e, so that attention can work with powers of two. Rotation is in float32; what is
left in `qkv` and stored is rounded to the model's type. A row reads nothing of another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu_program import ALSO_COUNT, ALSO_ROWS, ALSO_SLOTS, POSITIONS, ROWS, SLOTS, op, op_chunks
from kernels.cpu_vectors import (
    I32,
    I64,
    LANES,
    V_I16,
    V_I32,
    compiled_for,
    first_lanes,
    float_in,
    load_f32,
    load_i32,
    load_part,
    masked_load,
    masked_store,
    multiply_add,
    scratch,
    splat,
    spread,
    store_bf16,
    store_f32,
    store_i32,
    store_part,
    total,
    word,
    zeros,
)

MOST_HEAD_DIM = 1024
# Rows of a chunk where there are few, and where there are many: neighbours share lines of a key block.
_FEW_ROWS, _MANY_ROWS, _MANY = 8, 16, 64

(
    QKV, KEYS, VALUES, HEADS, KV_HEADS, HEAD_DIM, PAGE_TOKENS, KEY_COLUMNS, VALUE_COLUMNS, COS, SIN, WIDTH, INTERLEAVED,
    SCALE, Q_NORM, Q_EPSILON, K_NORM, K_EPSILON, WORDS,
) = range(19)  # fmt: skip

_head_floats = scratch(MOST_HEAD_DIM * 4)
_ONE = np.float32(1.0)


@intrinsic
def _move_halves(_, source, target, first, odd, count):
    """Up to 16 of the source's numbers of 16 bits, from `first` on, become the first (odd = 0) or the second halves of
    as many words of the target. The other halves, which may be another thread's, aren't touched."""

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        source, target, first, odd, count = arguments
        halves = ir.VectorType(ir.IntType(16), 2 * LANES)
        found = masked_load(b, b.add(source, b.shl(first, I64(1))), V_I16, first_lanes(b, count))
        words = b.shl(b.zext(found, V_I32), splat(b, b.trunc(b.shl(odd, I64(4)), I32)))
        words = b.bitcast(words, halves)
        word, half = (ir.Constant(halves, [ir.IntType(16)(part(i)) for i in range(2 * LANES)]) for part in _PLACE)
        inside = b.icmp_signed("<", word, _in_all(b, count, halves))
        mask = b.and_(inside, b.icmp_signed("==", half, _in_all(b, odd, halves)))
        masked_store(b, words, b.add(target, b.shl(first, I64(2))), mask)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


# Of a vector of half words: the word, and which half of it.
_PLACE = (lambda i: i // 2, lambda i: i % 2)


def _in_all(b: Any, value: Any, kind: Any) -> Any:
    none = ir.Constant(kind, ir.Undefined)
    one = b.insert_element(none, b.trunc(value, kind.element), I32(0))
    return b.shuffle_vector(one, none, ir.Constant(ir.VectorType(I32, kind.count), None))


@op_chunks
def rotate_chunks(args, step):
    rows = word(step, ROWS)
    share = _MANY_ROWS if rows >= _MANY else _FEW_ROWS
    return (rows + share - 1) // share


def _make_rotate(bfloat16: bool) -> Any:
    size, pair = (2, 2) if bfloat16 else (4, 1)
    kind = "bfloat16" if bfloat16 else "float32"

    @compiled_for(kind, inline="always")
    def store_one(address, index, value):
        if bfloat16:
            store_bf16(address, index, value)
        else:
            store_f32(address, index, value)

    @compiled_for(kind, inline="always")
    def scaled(x, i, count, factor, norm):
        value = load_part(x, i, count, bfloat16) * factor
        if norm != 0:
            value = value * load_part(norm, i, count, False)
        return value

    @compiled_for(kind, error_model="numpy")
    def rotate_head(x, head_dim, cos, sin, width, interleaved, scale, norm, epsilon):
        """x = rotated (normed x) · scale."""
        factor = scale
        if norm != 0:
            squares = zeros()
            for i in range(0, head_dim, LANES):
                value = load_part(x, i, head_dim - i, bfloat16)
                squares = multiply_add(value, value, squares)
            factor = scale / np.sqrt(total(squares) / np.float32(head_dim) + epsilon)
        factors, half = spread(factor), width // 2
        if interleaved:
            head = _head_floats()
            for i in range(0, width, LANES):
                store_part(head, i, scaled(x, i, width - i, factors, norm), width - i, False)
            for i in range(half):
                a, b, c, s = load_f32(head, 2 * i), load_f32(head, 2 * i + 1), load_f32(cos, i), load_f32(sin, i)
                store_one(x, 2 * i, a * c - b * s)
                store_one(x, 2 * i + 1, b * c + a * s)
        else:
            for i in range(0, half, LANES):
                count = half - i
                a, b = scaled(x, i, count, factors, norm), scaled(x, half + i, count, factors, norm)
                c, s = load_part(cos, i, count, False), load_part(sin, i, count, False)
                store_part(x, i, a * c - b * s, count, bfloat16)
                store_part(x, half + i, b * c + a * s, count, bfloat16)
        for i in range(width, head_dim, LANES):
            store_part(x, i, scaled(x, i, head_dim - i, factors, norm), head_dim - i, bfloat16)

    @compiled_for(kind)
    def store_head(key, value, keys, values, offset, head_dim, key_columns, value_columns):
        for i in range(head_dim // pair):
            store_i32(keys, i * key_columns + offset, load_i32(key, i))
        values += offset // pair * value_columns * 4
        for i in range(0, head_dim, LANES):
            if pair == 2:
                _move_halves(value, values, i, offset % 2, head_dim - i)
            else:
                store_part(values, i, load_part(value, i, head_dim - i, False), head_dim - i, False)

    @compiled_for(kind, error_model="numpy")
    def keep(args, step, row, slot):
        heads, kv_heads, head_dim = word(args, HEADS), word(args, KV_HEADS), word(args, HEAD_DIM)
        page_tokens = word(args, PAGE_TOKENS)
        key_columns, value_columns = word(args, KEY_COLUMNS), word(args, VALUE_COLUMNS)
        key_block, value_block = head_dim // pair * key_columns * 4, page_tokens // pair * value_columns * 4
        key = word(args, QKV) + ((row * (heads + 2 * kv_heads)) + heads) * head_dim * size
        page, offset = slot // page_tokens, slot % page_tokens
        for head in range(kv_heads):
            block = page * kv_heads + head
            store_head(
                key, key + kv_heads * head_dim * size,
                word(args, KEYS) + block * key_block, word(args, VALUES) + block * value_block,
                offset, head_dim, key_columns, value_columns,
            )  # fmt: skip
            key += head_dim * size

    @compiled_for(kind, inline="always")
    def rotate_and_store(args, step, chunk):
        heads, kv_heads, head_dim = word(args, HEADS), word(args, KV_HEADS), word(args, HEAD_DIM)
        width, interleaved = word(args, WIDTH), word(args, INTERLEAVED) != 0
        rows, scale = word(step, ROWS), float_in(word(args, SCALE))
        share = _MANY_ROWS if rows >= _MANY else _FEW_ROWS
        head_bytes = head_dim * size
        for row in range(chunk * share, min(chunk * share + share, rows)):
            turn = load_i32(word(step, POSITIONS), row) * (width // 2) * 4
            cos, sin = word(args, COS) + turn, word(args, SIN) + turn
            x = word(args, QKV) + row * (heads + 2 * kv_heads) * head_bytes
            for head in range(heads + kv_heads):
                is_q = head < heads
                rotate_head(
                    x + head * head_bytes, head_dim, cos, sin, width, interleaved, scale if is_q else _ONE,
                    word(args, Q_NORM if is_q else K_NORM), float_in(word(args, Q_EPSILON if is_q else K_EPSILON)),
                )  # fmt: skip
            keep(args, step, row, word(word(step, SLOTS), row))
            for also in range(word(step, ALSO_COUNT)):
                if load_i32(word(step, ALSO_ROWS), also) == row:
                    keep(args, step, row, word(word(step, ALSO_SLOTS), also))

    return rotate_and_store


_rotate_float32, _rotate_bfloat16 = _make_rotate(False), _make_rotate(True)


@op
def rotate_and_store_float32(args, step, chunk, thread):
    _rotate_float32(args, step, chunk)


@op
def rotate_and_store_bfloat16(args, step, chunk, thread):
    _rotate_bfloat16(args, step, chunk)
