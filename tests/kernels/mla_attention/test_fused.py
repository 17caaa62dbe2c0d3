"""Latent attention in Triton against plain torch, and bits that hang on a row's own context alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from kernels.mla_attention import fused, reference
from kernels.testing import assert_close, assert_same_bits, device, poisoned, random

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
SPLIT = 64
PAGE = 16
# A prefill over a split's end, a single row, drafts to verify, a first token.
MIXED = [(58, 9), (140, 1), (70, 4), (0, 1)]


@dataclass
class Rows:
    queries: torch.Tensor
    latents: torch.Tensor
    tables: torch.Tensor
    starts: torch.Tensor
    positions: torch.Tensor
    latent: int

    def arguments(self) -> tuple:
        return self.queries, self.latents, self.tables, self.starts, self.positions, 0.17, self.latent

    def one(self, sequence: int, row: int) -> Rows:
        at = int(self.starts[sequence]) + row
        tables = self.tables[sequence : sequence + 1].clone()
        starts = torch.tensor([0, 1], dtype=torch.int32, device=device())
        rows = slice(at, at + 1)
        return Rows(self.queries[rows].clone(), self.latents, tables, starts, self.positions[rows].clone(), self.latent)


def make(
    heads: int, latent: int, rope: int, spans: Sequence[tuple[int, int]], dtype: torch.dtype, shared: int = 0
) -> Rows:
    """spans: of each sequence, where its rows begin and how many they are. The first `shared` pages are everyone's."""
    needed = [-(-(start + count) // PAGE) for start, count in spans]
    latents = poisoned(shared + sum(needed) + 1, PAGE, latent + rope, dtype=dtype)
    tables = torch.zeros(len(spans), max(needed) + 1, dtype=torch.int32)
    free = iter(torch.randperm(len(latents) - 1 - shared, generator=torch.Generator().manual_seed(1)) + 1 + shared)
    for table, (start, count), pages in zip(tables, spans, needed, strict=True):
        for number in range(pages):
            table[number] = number + 1 if number < shared else next(free)
            filled = min(PAGE, start + count - number * PAGE)
            latents[table[number], :filled] = random(filled, latent + rope, dtype=dtype, seed=int(table[number]))
    positions = torch.cat([torch.arange(start, start + count) for start, count in spans]).int()
    starts = torch.tensor([0] + [count for _, count in spans]).cumsum(0).int()
    queries = random(len(positions), heads, latent + rope, dtype=dtype, seed=777)
    return Rows(queries, latents, tables.to(device()), starts.to(device()), positions.to(device()), latent)


def compute(rows: Rows, **options: object) -> torch.Tensor:
    out = fused.attend(*rows.arguments(), split=SPLIT, **options)
    assert not out.isnan().any()
    return out


@BOTH
@pytest.mark.parametrize("sizes", [(16, 64, 16), (4, 48, 8), (80, 32, 16)], ids=str)
def test_mixed_rows_equal_the_reference(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows = make(*sizes, MIXED, dtype)
    assert_close(compute(rows), reference.attend(*rows.arguments()), dtype)


@BOTH
def test_whether_a_context_is_split_among_programs_changes_no_bit(dtype: torch.dtype) -> None:
    # Items of the longest row take several splits.
    rows = make(8, 32, 16, [(900, 1), (120, 3), (63, 1)], dtype)
    whole = compute(rows, slots=0)
    assert_same_bits(compute(rows, slots=9), whole)
    assert_same_bits(compute(rows, slots=100), whole)


@BOTH
def test_a_row_alone_has_the_bits_it_has_in_a_batch(dtype: torch.dtype) -> None:
    rows = make(8, 32, 16, MIXED, dtype)
    together = compute(rows)
    for sequence, row in ((0, 5), (0, 6), (1, 0), (2, 3)):
        assert_same_bits(compute(rows.one(sequence, row))[0], together[int(rows.starts[sequence]) + row])


@BOTH
def test_a_shared_prefix_read_once_for_all_gives_the_same_bits(dtype: torch.dtype) -> None:
    rows = make(8, 32, 16, [(150, 1), (140, 6), (70, 1)], dtype, shared=8)
    once = compute(rows, cascade=True)
    assert_close(once, reference.attend(*rows.arguments()), dtype)
    assert_same_bits(once, compute(rows, cascade=False))


def test_absorbed_rows_say_what_keys_and_values_of_every_head_would() -> None:
    heads, nope, rope, value, latent = 4, 24, 16, 20, 32
    rows = make(heads, latent, rope, MIXED, torch.float32)
    key_up, value_up = fused.split_up(random(heads * (nope + value), latent, dtype=torch.float32), heads, nope)
    q = random(len(rows.queries), heads, nope + rope, dtype=torch.float32, seed=3) * 0.3
    rows.queries = fused.absorb(q, key_up)
    out = fused.expand(compute(rows), value_up)
    naive = reference.attend_naive(q, *rows.arguments()[1:6], key_up, value_up)
    assert_close(out / naive.abs().max(), naive / naive.abs().max())
