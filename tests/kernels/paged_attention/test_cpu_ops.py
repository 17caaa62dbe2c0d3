"""Attention as ops of the CPU program: against plain torch, and bits that depend on a row's own text only."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from kernels import amx
from kernels.cpu_instructions import Instructions
from kernels.cpu_program import (
    POSITIONS,
    ROWS,
    SEEN,
    SLOTS,
    STEP_WORDS,
    TABLE_WIDTH,
    TABLES,
    TILE_COUNT,
    TILES,
    Program,
    aligned,
)
from kernels.kv_store.reference import rotate_and_store
from kernels.paged_attention import reference
from kernels.paged_attention.cpu_ops import HeadNorm, Places, Shape, Workspace, attention_ops

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Of the largest output. bfloat16: queries, keys and weights are rounded to 8 bits, sums are float32.
TOLERANCE = {"float32": 2e-6, "bfloat16": 0.008}
# Of a CPU without products of bfloat16 nothing else can be seen.
NUMBERS = "bfloat16" if amx.HAS_PAIRS else "float32"
LLAMA = Shape(NUMBERS, 9, 3, 64, 32, scale=0.125, rope_width=64)
SHAPES = {
    "llama": LLAMA,
    "float32": replace(LLAMA, dtype="float32"),
    "one kv head": Shape(NUMBERS, 8, 1, 128, 16, scale=0.1, rope_width=128),
    "a query each": Shape("float32", 4, 4, 16, 8, scale=0.25, rope_width=16),
    "no tiles": replace(LLAMA, use=Instructions(tiles=False)),
    "odd sizes": Shape(NUMBERS, 6, 2, 40, 24, scale=0.2, rope_width=40),
    "window": replace(LLAMA, window=50, split=64),
    "window in float32": replace(LLAMA, dtype="float32", window=70),
    "interleaved": replace(LLAMA, interleaved=True),
    "partly rotated": replace(LLAMA, dtype="float32", rope_width=24, interleaved=True),
    "short splits": replace(LLAMA, split=32),
    "wide pages": Shape(NUMBERS, 4, 2, 80, 128, scale=0.1, rope_width=32),
}
NORMED = ("llama", "a query each", "interleaved")


@dataclass
class Span:
    """Rows of one sequence from position `start` on."""

    start: int
    rows: int
    table: list[int]


class Cache:
    """A layer's pages, full of NaN where nothing was stored, and the calls an executor makes."""

    def __init__(
        self, shape: Shape, pages: int = 48, threads: int = 1, normed: bool = False, sinks: torch.Tensor | None = None
    ) -> None:
        self.shape, self.dtype = shape, DTYPES[shape.dtype]
        key_words, value_words = shape.page_words
        self.keys, self.values = (aligned(pages * words, np.int32) for words in (key_words, value_words))
        self.keys[:], self.values[:] = -1, -1
        angles = torch.arange(2048.0)[:, None] / 100.0 ** (torch.arange(shape.rope_width // 2) / shape.rope_width)
        self.cos, self.sin = angles.cos(), angles.sin()
        generator = torch.Generator().manual_seed(9)
        self.norms = [torch.rand(shape.head_dim, generator=generator) + 0.5 for _ in range(2)] if normed else None
        self.threads, self.sinks = threads, sinks
        self.powers = None if sinks is None else sinks * math.log2(math.e)

    def run(self, qkv: torch.Tensor, spans: list[Span], tile: int = 16, seen: int = 0) -> torch.Tensor:
        """`seen`: places that all rows see, as those of a block; 0: each up to its own."""
        shape, rows = self.shape, len(qkv)
        qkv = qkv.clone()
        out = torch.full((rows, shape.heads * shape.head_dim), torch.nan, dtype=self.dtype)
        places = Places(
            qkv.data_ptr(), out.data_ptr(), self.keys.ctypes.data, self.values.ctypes.data,
            self.cos.data_ptr(), self.sin.data_ptr(), 0 if self.powers is None else self.powers.data_ptr(),
        )  # fmt: skip
        norms = [HeadNorm(weight.data_ptr(), 1e-5) for weight in self.norms] if self.norms else []
        space = Workspace(shape, threads=self.threads, tile_rows=tile)
        step, _kept = make_step(spans, tile, shape.page_tokens)
        if seen:
            of_rows = np.full(rows, seen, np.int32)
            step[SEEN] = of_rows.ctypes.data
        run_ops(attention_ops(shape, places, space, *norms), step, self.threads)
        return out

    def expected(self, qkv: torch.Tensor, spans: list[Span], seen: int = 0) -> torch.Tensor:
        """Of spans that begin at 0."""
        shape, rows = self.shape, len(qkv)
        size = (64, shape.kv_heads, shape.page_tokens, shape.head_dim)
        keys, values = torch.full(size, torch.nan, dtype=self.dtype), torch.full(size, torch.nan, dtype=self.dtype)
        owners = [s for s, span in enumerate(spans) for _ in range(span.rows)]
        at = torch.tensor([span.start + i for span in spans for i in range(span.rows)])
        pages = torch.tensor([spans[s].table[p // shape.page_tokens] for s, p in zip(owners, at.tolist(), strict=True)])
        queries = torch.empty(rows, shape.heads, shape.head_dim)
        weights = self.norms or (None, None)
        rotate_and_store(
            qkv, keys, values, pages * shape.page_tokens + at % shape.page_tokens, at, self.cos, self.sin, queries,
            *weights, epsilon=1e-5, interleaved=shape.interleaved,
        )  # fmt: skip
        tables = [span.table for span in spans]
        places = [seen - 1] * rows if seen else at.tolist()
        return reference.attend(
            queries, keys, values, tables, owners, places, shape.scale, shape.window, self.sinks
        ).flatten(1)

    def qkv(self, rows: int, seed: int = 0) -> torch.Tensor:
        width = (self.shape.heads + 2 * self.shape.kv_heads) * self.shape.head_dim
        return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).to(self.dtype)


def make_step(spans: list[Span], tile: int, page_tokens: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """The step's words, and the arrays behind them."""
    positions = np.concatenate([np.arange(s.start, s.start + s.rows, dtype=np.int32) for s in spans])
    slots = np.concatenate(
        [
            [s.table[p // page_tokens] * page_tokens + p % page_tokens for p in range(s.start, s.start + s.rows)]
            for s in spans
        ]
    ).astype(np.int64)
    width = max(len(span.table) for span in spans)
    tables = np.array([span.table + [0] * (width - len(span.table)) for span in spans], np.int32)
    tiles, first = [], 0
    for index, span in enumerate(spans):
        tiles += [(index, first + r, min(tile, span.rows - r)) for r in range(0, span.rows, tile)]
        first += span.rows
    tile_array = np.array(tiles, np.int32)
    step = np.zeros(STEP_WORDS, np.int64)
    step[ROWS], step[TABLE_WIDTH], step[TILE_COUNT] = len(positions), width, len(tiles)
    step[POSITIONS], step[SLOTS] = positions.ctypes.data, slots.ctypes.data
    step[TABLES], step[TILES] = tables.ctypes.data, tile_array.ctypes.data
    return step, [positions, slots, tables, tile_array]


def run_ops(ops, step, threads):
    if threads > 1:
        program = Program(ops, threads)
        program.step[:] = step
        program.run()
        program.close()
        return
    for one in ops:
        words = np.asarray(one.words, np.int64)
        # The last first: no chunk may count on another.
        for chunk in reversed(range(one.chunks(words.ctypes.data, step.ctypes.data))):
            one.run(words.ctypes.data, step.ctypes.data, chunk, 0)


def pages(first: int, count: int) -> list[int]:
    """Pages in no order."""
    return [first + (i * 7 + 3) % count for i in range(count)] if count % 7 else list(range(first, first + count))


@pytest.mark.parametrize("name", SHAPES)
def test_attention_equals_the_reference(name: str) -> None:
    cache = Cache(SHAPES[name], normed=name in NORMED)
    spans = [Span(0, 137, pages(0, 23)), Span(0, 70, pages(23, 13)), Span(0, 1, [40])]
    qkv = cache.qkv(208)
    expected = cache.expected(qkv, spans)
    found = cache.run(qkv, spans).float()
    worst = (found - expected).abs().max() / expected.abs().max()
    assert worst < TOLERANCE[cache.shape.dtype]


@pytest.mark.parametrize("name", ["window", "window in float32"])
def test_a_sink_takes_its_share_of_the_weights_however_the_rows_are_cut(name: str) -> None:
    shape = SHAPES[name]
    sinks = torch.tensor([-200.0, -3.0, 0.0, 1.0, 2.0, 3.0, 5.0, 9.0, 200.0])
    whole, cut, table = Cache(shape, sinks=sinks), Cache(shape, threads=2, sinks=sinks), pages(0, 23)
    qkv = whole.qkv(150)
    found = whole.run(qkv, [Span(0, 150, table)])
    expected = whole.expected(qkv, [Span(0, 150, table)])
    assert (found.float() - expected).abs().max() < TOLERANCE[shape.dtype] * expected.abs().max()
    parts = [cut.run(qkv[first : first + count], [Span(first, count, table)]) for first, count in ((0, 149), (149, 1))]
    assert torch.equal(torch.cat(parts), found)
    # What is next to nothing takes nothing, and what is all leaves nothing.
    heads = found.view(150, 9, -1)
    without = Cache(shape).run(qkv, [Span(0, 150, table)]).view(150, 9, -1)
    assert torch.equal(heads[:, 0], without[:, 0]) and not heads[:, 8].any()


CHUNKS = [[1] * 150, [3] * 50, [16, 16, 16, 1, 7, 64, 30], [64, 64, 22], [149, 1]]


@pytest.mark.parametrize("chunks", CHUNKS, ids=lambda chunks: f"{chunks[0]} rows first")
@pytest.mark.parametrize("name", SHAPES)
def test_chunks_tiles_and_threads_give_the_bits_of_the_whole(name: str, chunks: list[int]) -> None:
    shape = SHAPES[name]
    whole, cut = Cache(shape), Cache(shape, threads=2 if chunks[0] == 16 else 1)
    table, qkv = pages(0, 23), whole.qkv(150)
    expected = whole.run(qkv, [Span(0, 150, table)], tile=7)
    found, start = [], 0
    for rows in chunks:
        found.append(cut.run(qkv[start : start + rows], [Span(start, rows, table)]))
        start += rows
    assert torch.equal(torch.cat(found), expected)
    assert np.array_equal(cut.keys, whole.keys) and np.array_equal(cut.values, whole.values)


@pytest.mark.parametrize("name", ["llama", "float32"])
def test_values_that_cancel_show_the_same_rounding_errors_in_any_chunk(name: str) -> None:
    """Rounding of results hides most differences: here the exact result of every second row is 0."""
    shape = replace(SHAPES[name], split=64)
    whole, cut = Cache(shape), Cache(shape)
    qkv, table = whole.qkv(150), pages(0, 23)
    first_value = (shape.heads + shape.kv_heads) * shape.head_dim
    qkv[:, : shape.heads * shape.head_dim] = 0.0
    turned = torch.randperm(75, generator=torch.Generator().manual_seed(3))
    qkv[75:, first_value:] = -qkv[:75, first_value:][turned]
    expected = whole.run(qkv, [Span(0, 150, table)], tile=11)
    assert 0 < expected[149].abs().max() < 1e-5
    alone = [cut.run(qkv[i : i + 1], [Span(i, 1, table)]) for i in range(150)]
    assert torch.equal(torch.cat(alone), expected)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", ["llama", "float32"])
def test_splits_that_threads_share_give_the_bits_of_one_thread(name: str, rows: int) -> None:
    shape, table = SHAPES[name], list(range(42))
    one, two = Cache(shape), Cache(shape, threads=2)
    prompt, more = one.qkv(1300), one.qkv(rows, seed=1)
    for cache in (one, two):
        cache.run(prompt, [Span(0, 1300, table)])
    expected, found = (cache.run(more, [Span(1300, rows, table)]) for cache in (one, two))
    assert torch.equal(found, expected)
    assert not torch.equal(found, torch.zeros_like(found))


def test_few_rows_over_a_long_context_are_shared_by_splits_and_many_rows_are_not() -> None:
    cache = Cache(LLAMA, threads=2)
    places = Places(*(0,) * 6)
    _, attend, merge = attention_ops(LLAMA, places, Workspace(LLAMA, threads=2, tile_rows=16))
    words = np.asarray(attend.words, np.int64)

    def chunks(start: int, rows: int) -> tuple[int, int]:
        step, _kept = make_step([Span(start, rows, list(range(64)))], 16, cache.shape.page_tokens)
        return tuple(one.chunks(words.ctypes.data, step.ctypes.data) for one in (attend, merge))

    assert chunks(100, 1) == (3, 0)
    assert chunks(1500, 1) == (3 * 3, 3)
    assert chunks(100, 16) == (3 * 2, 0)
    assert chunks(1000, 128) == (8 * 3, 0)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["llama", "float32", "short splits"])
def test_each_row_of_a_block_sees_all_of_it(name: str, threads: int) -> None:
    cache = Cache(SHAPES[name], threads=threads)
    table, qkv = pages(0, 5), cache.qkv(70)
    expected = cache.expected(qkv, [Span(0, 70, table)], seen=70)
    cache.run(qkv[:50], [Span(0, 50, table)])
    found = cache.run(qkv[50:], [Span(50 + row, 1, table) for row in range(20)], seen=70)
    worst = (found.float() - expected[50:]).abs().max() / expected[50:].abs().max()
    assert worst < TOLERANCE[cache.shape.dtype]


def test_sizes_that_the_loops_do_not_have_are_refused_by_name() -> None:
    for shape, name in ((replace(LLAMA, page_tokens=20), "page_tokens 20"), (replace(LLAMA, head_dim=63), "head_dim")):
        with pytest.raises(ValueError, match=name):
            attention_ops(shape, Places(*(0,) * 6), Workspace(LLAMA, threads=1, tile_rows=16))
