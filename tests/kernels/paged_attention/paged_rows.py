"""Sequences in pages, for tests of attention on any device: contexts are drawn, and what no row may read is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kernels.testing import poisoned, random


@dataclass
class Rows:
    """What attention is given. Pages are dealt in no order, unless sequences share a prefix."""

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    tables: list[list[int]]
    sequences: list[int]
    places: list[int]

    def arguments(self) -> tuple:
        scale = self.queries.shape[-1] ** -0.5
        return self.queries, self.keys, self.values, self.tables, self.sequences, self.places, scale

    def some(self, sequence: int, first: int, count: int) -> Rows:
        """Rows first .. first + count - 1 of one sequence, without the others."""
        at = self.sequences.index(sequence) + first
        rows = slice(at, at + count)
        return replace(self, queries=self.queries[rows].clone(), sequences=[sequence] * count, places=self.places[rows])


def make(
    heads: int,
    kv_heads: int,
    head_dim: int,
    page_tokens: int,
    spans: Sequence[tuple[int, int]],  # of each sequence: where its rows begin, and how many they are
    dtype: torch.dtype,
    shared: int = 0,  # first positions, in whole pages, that all sequences have in common
    seed: int = 0,
) -> Rows:
    lengths = [start + count for start, count in spans]
    needed = [-(-length // page_tokens) for length in lengths]
    common = shared // page_tokens
    total = common + sum(needed) + 2
    order = (torch.randperm(total - 1, generator=torch.Generator().manual_seed(seed)) + 1).tolist()
    prefix = [order.pop() for _ in range(common)]
    keys, values = (poisoned(total, kv_heads, page_tokens, head_dim, dtype=dtype) for _ in range(2))
    # Page 0 stays NaN, as does what lies behind a sequence's last token.
    tables = []
    for length, pages in zip(lengths, needed, strict=True):
        own = [*prefix[:pages], *(order.pop() for _ in range(pages - min(common, pages)))]
        tables.append(own)
        for number, page in enumerate(own):
            filled = min(page_tokens, length - number * page_tokens)
            for which, cache in enumerate((keys, values)):
                drawn = random(kv_heads, filled, head_dim, dtype=dtype, seed=seed + 2 * page + which)
                cache[page, :, :filled] = drawn
    sequences = [index for index, (_, count) in enumerate(spans) for _ in range(count)]
    places = [place for start, count in spans for place in range(start, start + count)]
    queries = random(len(places), heads, head_dim, dtype=dtype, seed=seed + 9999)
    return Rows(queries, keys, values, tables, sequences, places)
