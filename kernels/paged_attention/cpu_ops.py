"""Attention over pages as ops of the CPU program: rotate and store, attend, merge.

    keys   [pages, kv_heads, D/2, page_tokens, 2]   bfloat16; float32: [pages, kv_heads, D, page_tokens]
    values [pages, kv_heads, page_tokens/2, D, 2]   bfloat16; float32: [pages, kv_heads, page_tokens, D]

One word of 32 bits is a pair of bfloat16 (or one float32); 16 neighbouring words are one vector, of 16 keys or of
16 dimensions (page_tokens in a key block and D in a value block are rounded up to 16). q is rotated where the
linear left it.

A row's context is cut at multiples of `split` positions. Within a split: scores of all positions, their maximum,
weights 2**(score - maximum), and the weighted sum of the values, each in the order of the positions; then the
splits are merged in order. Where the cuts are depends on nothing but the position, and merging does the same
arithmetic whether one chunk goes through all splits of a tile or every split is a chunk of its own (few rows over
a long context). So a row's bits depend on its text alone, whatever its batch, tile, chunk or number of threads.

What a row does not see gets the weight 0. Behind the last token of a page there may be anything, NaN too: scores
of it are overwritten, values of it are not read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from kernels import amx
from kernels.cpu_instructions import ALL, Instructions
from kernels.cpu_program import (
    POSITIONS,
    ROWS,
    SEEN,
    TABLE_WIDTH,
    TABLES,
    TILE_COUNT,
    TILES,
    Op,
    aligned,
    op,
    op_chunks,
)
from kernels.cpu_vectors import (
    LANES,
    bits_of_float,
    compiled_for,
    load_i32,
    prefetch,
    scratch,
    store_i32,
    word,
)
from kernels.paged_attention import cpu_amx, cpu_rotate
from kernels.paged_attention.cpu_products import (
    AMX,
    BFLOAT16,
    FLOAT32,
    VECTOR_BYTES,
    Numbers,
    hide,
    make_finish,
    make_product,
    make_softmax,
    merge,
)
from kernels.paged_attention.cpu_rotate import MOST_HEAD_DIM

SPLIT = 512
# Chunks a thread should find, so that the threads end at about the same time.
_CHUNKS_A_THREAD = 3
# Splits of rows kept for merging, at most.
_MOST_PARTS = 1 << 14

(
    QKV, KEYS, VALUES, OUT, HEADS, KV_HEADS, HEAD_DIM, PAGE_TOKENS, KEY_COLUMNS, VALUE_COLUMNS, WINDOW, SPLIT_TOKENS,
    SCRATCH, SCRATCH_STRIDE, QUERY_BYTES, PARTS, MOST_PARTS, CHUNKS_WANTED, SINKS,
) = range(19)  # fmt: skip


@numba.njit(inline="always")
def _vectors(columns: int) -> int:
    return (columns + LANES - 1) // LANES


@numba.njit
def _place(step, row):
    """The last place that a row sees: its own, or in a block another one."""
    if word(step, SEEN) == 0:
        return np.int64(load_i32(word(step, POSITIONS), row))
    return np.int64(load_i32(word(step, SEEN), row)) - 1


@numba.njit
def _plan(args, step):
    """(splits, row parts of a tile): how the work is cut. Splits are counted only where they are chunks."""
    tiles, split = word(step, TILES), word(args, SPLIT_TOKENS)
    kv_heads, wanted = word(args, KV_HEADS), word(args, CHUNKS_WANTED)
    chunks = word(step, TILE_COUNT) * kv_heads
    splits, parts = 1, 1
    if chunks >= wanted:
        return splits, parts
    most_rows, last = np.int64(1), np.int64(0)
    for tile in range(word(step, TILE_COUNT)):
        rows = load_i32(tiles, tile * 3 + 2)
        most_rows = max(most_rows, np.int64(rows))
        last = max(last, _place(step, load_i32(tiles, tile * 3 + 1) + rows - 1))
    if (last // split + 1) * word(step, ROWS) * word(args, HEADS) <= word(args, MOST_PARTS):
        splits = last // split + 1
    group = word(args, HEADS) // kv_heads
    while chunks * splits * parts < wanted and most_rows // (2 * parts) * group >= LANES // 2:
        parts *= 2
    return splits, parts


@op_chunks
def attend_chunks(args, step):
    splits, parts = _plan(args, step)
    return splits * parts * word(step, TILE_COUNT) * word(args, KV_HEADS)


@numba.njit
def _copy_words(source, target, count):
    for i in range(count):
        store_i32(target, i, load_i32(source, i))


@numba.njit
def _prefetch(address, size):
    for offset in range(0, size, 64):
        prefetch(address + offset)


def _make_attend(numbers: Numbers) -> Any:
    """attend(args, step, chunk, thread) for one kind of numbers."""
    product, softmax, finish = make_product(numbers), make_softmax(numbers), make_finish(numbers)
    # Elements of a word, and of q, k, v and weights in bytes.
    pair, size, most_rows, most_columns = 4 // numbers.bytes, numbers.bytes, numbers.rows, numbers.columns
    with_amx, state_of_tiles = numbers.amx, scratch(amx.STATE if numbers.amx else 0)

    @compiled_for(numbers.name)
    def products(
        state, rows, vectors, left, left_stride, table, pages, base, page_stride, step_stride,
        steps, last_steps, mask, out, out_stride,
    ):  # fmt: skip
        column = 0
        while column < vectors:
            columns = most_columns
            while columns > vectors - column:
                columns //= 2
            offset = column * VECTOR_BYTES
            product(
                state, rows, columns, left, left_stride, table, pages, base + offset, page_stride, step_stride,
                steps, last_steps, mask, out + offset, out_stride,
            )  # fmt: skip
            column += columns

    @compiled_for(numbers.name, inline="always")
    def attend_rows(args, state, table, kv_head, base, first, rows, group, at, queries, scores, to):
        """`rows` query rows against the split that begins at position `base`: sums, maxima and totals go to `to`.

        Query row i is head i % group of a row that is at place at + i // group.
        """
        head_dim, page_tokens = word(args, HEAD_DIM), word(args, PAGE_TOKENS)
        window, split = word(args, WINDOW), word(args, SPLIT_TOKENS)
        key_columns, value_columns = word(args, KEY_COLUMNS), word(args, VALUE_COLUMNS)
        kv_heads = word(args, KV_HEADS)
        key_block, value_block = head_dim // pair * key_columns * 4, page_tokens // pair * value_columns * 4
        keys = word(args, KEYS) + kv_head * key_block
        values = word(args, VALUES) + kv_head * value_block
        stride = value_columns * 4 + VECTOR_BYTES
        score_stride = (split + LANES) * 4
        last = at + (first + rows - 1) // group
        end = min(last + 1 - base, split)
        low = max(at + first // group - window + 1 - base, 0) if window > 0 else 0
        left = queries + first * head_dim * size
        from_page, to_page = low // page_tokens, (end + page_tokens - 1) // page_tokens
        from_vector, to_vector = from_page * page_tokens // LANES, _vectors(end)
        entries = table + base // page_tokens * 4
        in_last = end - (to_page - 1) * page_tokens
        mask = 0xFFFF if in_last % pair else -1
        if with_amx:
            cpu_amx.configure(state, rows, (in_last + pair - 1) // pair, mask)
        for page in range(from_page, to_page):
            vectors = _vectors(min(page_tokens, end - page * page_tokens))
            if first == 0:
                if page + 1 < to_page:
                    _prefetch(keys + load_i32(entries, page + 1) * kv_heads * key_block, key_block)
                _prefetch(values + load_i32(entries, page) * kv_heads * value_block, value_block)
            products(
                state, rows, vectors, left, head_dim * size, entries + page * 4, 1, keys, kv_heads * key_block,
                key_columns * 4, head_dim // pair, head_dim // pair, -1,
                scores + page * page_tokens * 4, score_stride,
            )  # fmt: skip
        for i in range(rows):
            position = at + (first + i) // group - base
            lowest = position - window + 1 if window > 0 else 0
            row = scores + i * score_stride
            for vector in range(from_vector, min(_vectors(lowest), to_vector)):
                hide(row + vector * VECTOR_BYTES, vector * LANES, lowest, position)
            for vector in range(max((position + 1) // LANES, from_vector), to_vector):
                hide(row + vector * VECTOR_BYTES, vector * LANES, lowest, position)
            softmax(row, from_vector, to_vector, to + i * stride + value_columns * 4)
        products(
            state, rows, value_columns // LANES, scores + from_page * page_tokens * size, score_stride,
            entries + from_page * 4, to_page - from_page, values, kv_heads * value_block, value_columns * 4,
            page_tokens // pair, (in_last + pair - 1) // pair, mask, to, stride,
        )  # fmt: skip

    @compiled_for(numbers.name, inline="always")
    def attend(args, step, chunk, thread):
        heads, kv_heads, head_dim = word(args, HEADS), word(args, KV_HEADS), word(args, HEAD_DIM)
        window, split = word(args, WINDOW), word(args, SPLIT_TOKENS)
        value_columns, group = word(args, VALUE_COLUMNS), heads // kv_heads
        tiles = word(step, TILES)
        splits, parts = _plan(args, step)
        kv_head, rest = chunk % kv_heads, chunk // kv_heads
        part, rest = rest % parts, rest // parts
        tile, own_split = rest % word(step, TILE_COUNT), rest // word(step, TILE_COUNT)
        rows = np.int64(load_i32(tiles, tile * 3 + 2))
        share = (rows + parts - 1) // parts
        first_row = load_i32(tiles, tile * 3 + 1) + part * share
        rows = min(share, rows - part * share)
        if rows <= 0:
            return
        at = _place(step, first_row)
        lowest = max(at - window + 1, 0) if window > 0 else 0
        from_split, to_split = lowest // split, (at + rows - 1) // split + 1
        alone = splits > 1
        if alone:
            from_split, to_split = max(own_split, from_split), min(own_split + 1, to_split)
            if from_split >= to_split:
                return
        table = word(step, TABLES) + load_i32(tiles, tile * 3) * word(step, TABLE_WIDTH) * 4
        # Scratch of a thread: queries | scores | a part | the state of every row.
        count, stride = rows * group, value_columns * 4 + VECTOR_BYTES
        queries = word(args, SCRATCH) + thread * word(args, SCRATCH_STRIDE)
        scores = queries + word(args, QUERY_BYTES)
        partial = scores + most_rows * (split + LANES) * 4
        state = partial + most_rows * stride
        if alone:
            state = word(args, PARTS) + stride * group * (
                (own_split * kv_heads + kv_head) * word(step, ROWS) + first_row
            )
        row_bytes = (heads + 2 * kv_heads) * head_dim * size
        for row in range(rows):
            source = word(args, QKV) + (first_row + row) * row_bytes + kv_head * group * head_dim * size
            _copy_words(source, queries + row * group * head_dim * size, group * head_dim // pair)
        amx_state = state_of_tiles()
        # As many blocks as needed, of about equal size.
        blocks = (count + most_rows - 1) // most_rows
        block_rows = (count + blocks - 1) // blocks
        for index in range(from_split, to_split):
            for first in range(0, count, block_rows):
                block = min(block_rows, count - first)
                low = max(at + first // group - window + 1, 0) // split if window > 0 else 0
                if index < low or index > (at + (first + block - 1) // group) // split:
                    continue
                to = state + first * stride if alone or index == low else partial
                attend_rows(
                    args, amx_state, table, kv_head, index * split, first, block, group, at, queries, scores, to
                )  # fmt: skip
                if to == partial:
                    for i in range(block):
                        merge(state + (first + i) * stride, partial + i * stride, value_columns // LANES)
        if with_amx:
            amx.release(amx_state)
        if alone:
            return
        for i in range(count):
            row, head = first_row + i // group, kv_head * group + i % group
            to = word(args, OUT) + (row * heads + head) * head_dim * size
            finish(state + i * stride, value_columns // LANES, to, head_dim, word(args, SINKS), head)

    return attend


@op_chunks
def merge_chunks(args, step):
    """A chunk is a row and a kv head, where splits were chunks."""
    splits, _ = _plan(args, step)
    return word(step, ROWS) * word(args, KV_HEADS) if splits > 1 else 0


def _make_merge_parts(numbers: Numbers) -> Any:
    finish, size = make_finish(numbers), numbers.bytes

    @compiled_for(numbers.name, inline="always")
    def merge_parts(args, step, chunk):
        heads, kv_heads, head_dim = word(args, HEADS), word(args, KV_HEADS), word(args, HEAD_DIM)
        window, split = word(args, WINDOW), word(args, SPLIT_TOKENS)
        value_columns, group = word(args, VALUE_COLUMNS), heads // kv_heads
        row, kv_head = chunk // kv_heads, chunk % kv_heads
        position = _place(step, row)
        low = max(position - window + 1, 0) // split if window > 0 else 0
        stride = value_columns * 4 + VECTOR_BYTES
        next_split = stride * group * kv_heads * word(step, ROWS)
        parts = word(args, PARTS) + stride * group * (kv_head * word(step, ROWS) + row)
        for i in range(group):
            state = parts + low * next_split + i * stride
            for index in range(low + 1, position // split + 1):
                merge(state, parts + index * next_split + i * stride, value_columns // LANES)
            head = kv_head * group + i
            to = word(args, OUT) + (row * heads + head) * head_dim * size
            finish(state, value_columns // LANES, to, head_dim, word(args, SINKS), head)

    return merge_parts


_attend_float32, _attend_bfloat16, _attend_amx = (_make_attend(numbers) for numbers in (FLOAT32, BFLOAT16, AMX))
_merge_float32, _merge_bfloat16 = _make_merge_parts(FLOAT32), _make_merge_parts(BFLOAT16)


@op
def attend_float32(args, step, chunk, thread):
    _attend_float32(args, step, chunk, thread)


@op
def attend_bfloat16(args, step, chunk, thread):
    _attend_bfloat16(args, step, chunk, thread)


@op
def attend_amx(args, step, chunk, thread):
    _attend_amx(args, step, chunk, thread)


@op
def merge_float32(args, step, chunk, thread):
    _merge_float32(args, step, chunk)


@op
def merge_bfloat16(args, step, chunk, thread):
    _merge_bfloat16(args, step, chunk)


# What an executor asks for --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shape:
    """Attention of one layer. `dtype` is float32, or bfloat16 where there are instructions for it (amx.HAS_PAIRS) and
    they may be used."""

    dtype: str
    heads: int
    kv_heads: int
    head_dim: int
    page_tokens: int
    scale: float
    rope_width: int
    interleaved: bool = False
    window: int = 0
    split: int = SPLIT
    # Tiles only where rows and pages are whole ones.
    use: Instructions = ALL

    @property
    def numbers(self) -> Numbers:
        if self.dtype == "float32":
            return FLOAT32
        whole = self.head_dim % cpu_amx.WHOLE == 0 and self.page_tokens % cpu_amx.WHOLE == 0
        return AMX if self.use.tiles and amx.AVAILABLE and whole else BFLOAT16

    @property
    def pair(self) -> int:
        return 4 // self.numbers.bytes

    @property
    def key_columns(self) -> int:
        return _up(self.page_tokens, LANES)

    @property
    def value_columns(self) -> int:
        return _up(self.head_dim, LANES)

    @property
    def split_tokens(self) -> int:
        """Cuts are where pages end."""
        return max(self.split // self.page_tokens, 1) * self.page_tokens

    @property
    def page_words(self) -> tuple[int, int]:
        """32-bit words of a page's keys and of its values."""
        keys = self.kv_heads * self.head_dim // self.pair * self.key_columns
        return keys, self.kv_heads * self.page_tokens // self.pair * self.value_columns

    def check(self) -> None:
        if self.head_dim % 2 or self.head_dim > MOST_HEAD_DIM or self.rope_width % 2:
            raise ValueError(f"head_dim {self.head_dim}: must be even and at most {MOST_HEAD_DIM}")
        if self.page_tokens % 8:
            raise ValueError(f"page_tokens {self.page_tokens}: must be a multiple of 8")


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


class Workspace:
    """Memory that the layers of a network use in turn. `tile_rows`: most rows of a tile."""

    def __init__(self, shape: Shape, *, threads: int, tile_rows: int) -> None:
        group, numbers = shape.heads // shape.kv_heads, shape.numbers
        state = shape.value_columns * 4 + VECTOR_BYTES
        scores = (shape.split_tokens + LANES) * 4
        # _up: parts begin at whole vectors.
        self.query_bytes = _up(tile_rows * group * shape.head_dim * numbers.bytes, VECTOR_BYTES)
        self.stride = self.query_bytes + numbers.rows * (scores + state) + tile_rows * group * state
        self.stride = _up(self.stride, VECTOR_BYTES) + VECTOR_BYTES
        self.threads = threads
        self.scratch = aligned(threads * self.stride, np.uint8)
        self.most_parts = _MOST_PARTS if threads > 1 else 0
        self.parts = aligned(self.most_parts * state, np.uint8)


@dataclass(frozen=True, slots=True)
class Places:
    """Addresses: the linear's output and attention's, this layer's pages, tables [positions, rope_width/2] float32, and
    the heads' sinks as powers of two, float32 (0: none)."""

    qkv: int
    out: int
    keys: int
    values: int
    cos: int
    sin: int
    sinks: int = 0


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMSNorm over a head: address of its float32 weights."""

    weight: int
    epsilon: float


_NO_NORM = HeadNorm(0, 0.0)
_ATTEND = {FLOAT32: attend_float32, BFLOAT16: attend_bfloat16, AMX: attend_amx}


def attention_ops(
    shape: Shape, places: Places, space: Workspace, q_norm: HeadNorm = _NO_NORM, k_norm: HeadNorm = _NO_NORM
) -> list[Op]:
    """From the qkv linear's output to `out`: rotate and store, attend, merge. The caller keeps what `places` name."""
    shape.check()
    sizes = (shape.heads, shape.kv_heads, shape.head_dim, shape.page_tokens, shape.key_columns, shape.value_columns)
    scale = bits_of_float(shape.scale * math.log2(math.e))
    bfloat16 = shape.numbers.bfloat16
    if bfloat16 and not amx.HAS_PAIRS:
        raise ValueError("this CPU doesn't multiply pairs of bfloat16: its keys and values are float32")
    rotate = Op(
        run=cpu_rotate.rotate_and_store_bfloat16 if bfloat16 else cpu_rotate.rotate_and_store_float32,
        chunks=cpu_rotate.rotate_chunks,
        words=(
            places.qkv, places.keys, places.values, *sizes, places.cos, places.sin, shape.rope_width,
            int(shape.interleaved), scale, q_norm.weight, bits_of_float(q_norm.epsilon), k_norm.weight,
            bits_of_float(k_norm.epsilon),
        ),
    )  # fmt: skip
    words = (
        places.qkv, places.keys, places.values, places.out, *sizes, shape.window, shape.split_tokens,
        space.scratch.ctypes.data, space.stride, space.query_bytes, space.parts.ctypes.data, space.most_parts,
        _CHUNKS_A_THREAD * space.threads if space.threads > 1 else 0, places.sinks,
    )  # fmt: skip
    attend = Op(_ATTEND[shape.numbers], attend_chunks, words, (space,))
    return [rotate, attend, Op(merge_bfloat16 if bfloat16 else merge_float32, merge_chunks, words, (space,))]
