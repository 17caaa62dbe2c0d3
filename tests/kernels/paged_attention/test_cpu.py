"""The compiled attention loops against plain torch, and bits that depend on a row's own position only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from kernels.kv_store.reference import rotate_and_store as reference_store
from kernels.paged_attention import reference
from kernels.paged_attention.cpu import attend, rotate_and_store

TOLERANCE = {torch.bfloat16: 0.01, torch.float32: 2e-5}


def flat(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).view(-1).numpy()


@dataclass
class Pages:
    """A cache whose unwritten places are NaN, and the calls a network makes on it."""

    heads: int
    kv_heads: int
    head_dim: int
    page_tokens: int
    dtype: torch.dtype
    pages: int = 24

    def __post_init__(self) -> None:
        size = (self.pages, self.kv_heads, self.head_dim, self.page_tokens)
        self.keys = torch.full(size, torch.nan, dtype=self.dtype)
        self.values = torch.full((*size[:2], size[3], size[2]), torch.nan, dtype=self.dtype)
        angles = torch.arange(256.0)[:, None] / 100.0 ** (torch.arange(self.head_dim // 2) / self.head_dim)
        self.cos, self.sin = angles.cos(), angles.sin()

    def run(
        self, qkv: torch.Tensor, spans: list[tuple[int, int]], tables: list[list[int]], tile: int = 16
    ) -> torch.Tensor:
        """spans: (first position, rows) of each sequence, whose rows follow each other in qkv."""
        positions = [start + i for start, rows in spans for i in range(rows)]
        owners = [s for s, (_, rows) in enumerate(spans) for _ in range(rows)]
        slots = [
            tables[s][p // self.page_tokens] * self.page_tokens + p % self.page_tokens
            for s, p in zip(owners, positions, strict=True)
        ]
        tiles, first = [], 0
        for s, (_, rows) in enumerate(spans):
            tiles += [(s, first + r, min(tile, rows - r)) for r in range(0, rows, tile)]
            first += rows
        width = max(map(len, tables))
        table = np.array([t + [0] * (width - len(t)) for t in tables], np.int32).reshape(-1)
        at = np.array(positions, np.int32)
        queries = np.empty(len(at) * self.heads * self.head_dim, np.float32)
        out = torch.full((len(at), self.heads * self.head_dim), torch.nan, dtype=self.dtype)
        sizes = (self.heads, self.kv_heads, self.head_dim, self.page_tokens)
        rotate_and_store(
            qkv.data_ptr(), queries, flat(self.keys), flat(self.values), np.array(slots), at,
            flat(self.cos), flat(self.sin), len(at), *sizes,
        )  # fmt: skip
        attend(
            queries, flat(self.keys), flat(self.values), table, width, np.array(tiles, np.int32).reshape(-1),
            0, len(tiles) * self.kv_heads, at, flat(out), *sizes,
        )  # fmt: skip
        return out

    def qkv(self, rows: int, seed: int = 0) -> torch.Tensor:
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).to(self.dtype)


def expect(
    pages: Pages, qkv: torch.Tensor, tables: list[list[int]], owners: list[int], positions: list[int]
) -> torch.Tensor:
    queries = torch.empty(len(qkv), pages.heads, pages.head_dim)
    keys, size = pages.keys.transpose(2, 3), pages.page_tokens
    slots = torch.tensor([tables[s][p // size] * size + p % size for s, p in zip(owners, positions, strict=True)])
    at = torch.tensor(positions)
    reference_store(qkv, keys, pages.values, slots, at, pages.cos, pages.sin, queries)
    out = reference.attend(queries, keys, pages.values, tables, owners, positions, pages.head_dim**-0.5)
    return out.flatten(1)


SIZES = [(9, 3, 64, 32), (4, 4, 16, 8), (8, 1, 8, 16), (6, 2, 40, 24)]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("sizes", SIZES)
def test_attention_equals_the_reference(sizes: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    ours, theirs = Pages(*sizes, dtype), Pages(*sizes, dtype)
    tables = [[5, 2, 9, 11, 3, 14, 15], [0, 7, 1, 4, 6, 12, 13]]
    qkv = ours.qkv(60)
    spans = [(0, 37), (0, 23)]
    more = [(37, 1), (23, 9)]
    for rows, step in ((qkv, spans), (ours.qkv(10, seed=1), more)):
        out = ours.run(rows, step, tables)
        owners = [s for s, (_, count) in enumerate(step) for _ in range(count)]
        positions = [start + i for start, count in step for i in range(count)]
        expected = expect(theirs, rows, tables, owners, positions)
        torch.testing.assert_close(out.float(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        written = ~theirs.keys.isnan()
        torch.testing.assert_close(ours.keys[written], theirs.keys[written], rtol=0.01, atol=1e-6)
        assert torch.equal(ours.keys.isnan(), theirs.keys.isnan())
        assert torch.equal(ours.values.isnan(), theirs.values.isnan())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("chunk", [1, 3, 8, 17])
def test_chunks_give_the_bits_of_the_whole(sizes: tuple[int, int, int, int], dtype: torch.dtype, chunk: int) -> None:
    whole, cut = Pages(*sizes, dtype), Pages(*sizes, dtype)
    table, qkv = [[8, 3, 5, 1, 0, 9, 7]], whole.qkv(50)
    expected = whole.run(qkv, [(0, 50)], table)
    pieces = [cut.run(piece.contiguous(), [(i * chunk, len(piece))], table) for i, piece in enumerate(qkv.split(chunk))]
    assert torch.equal(torch.cat(pieces), expected)
    assert torch.equal(flat_bits(cut.keys), flat_bits(whole.keys))


def flat_bits(tensor: torch.Tensor) -> torch.Tensor:
    """NaN equals NaN here."""
    return torch.from_numpy(flat(tensor).view(np.uint8))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_which_pages_hold_a_sequence_and_who_else_is_there_changes_no_bit(dtype: torch.dtype) -> None:
    alone, crowd = Pages(*SIZES[0], dtype), Pages(*SIZES[0], dtype)
    mine, other = alone.qkv(40), alone.qkv(30, seed=2)
    expected = alone.run(mine, [(0, 40)], [[0, 1]])
    out = crowd.run(torch.cat([other, mine]), [(0, 30), (0, 40)], [[3], [20, 4]], tile=5)
    assert torch.equal(out[30:], expected)


def test_a_shared_first_page_serves_two_sequences() -> None:
    pages = Pages(*SIZES[0], torch.float32)
    prefix, ends = pages.qkv(32), pages.qkv(2, seed=4)
    pages.run(prefix, [(0, 32)], [[0]])
    both = pages.run(ends, [(32, 1), (32, 1)], [[0, 1], [0, 2]])
    again = pages.run(ends[1:].contiguous(), [(32, 1)], [[0, 3]])
    assert torch.equal(both[1:], again)
