"""Attention on the device itself, at sizes that the interpreter is too slow for: the same parity, the same laws."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels import interpreter
from kernels.kv_store import fused as store
from kernels.launch import architecture
from kernels.mla_attention import fused as latent
from kernels.mla_attention import reference as latent_reference
from kernels.paged_attention import fused, reference
from kernels.paged_attention.plan import plan
from kernels.paged_attention.work import AttentionWork, Partials
from kernels.testing import TOLERANCE, assert_close, assert_same_bits, device, random
from tests.kernels.paged_attention.paged_rows import Rows, make

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(interpreter.in_use() or not torch.cuda.is_available(), reason="no GPU here"),
]
# heads, kv_heads, D, page_tokens
SIZES = [(32, 8, 128, 16), (9, 3, 64, 32), (16, 8, 256, 16), (8, 8, 80, 16), (64, 4, 128, 32)]
MIXED = [(0, 300), (5000, 1), (1500, 5), (511, 2), (2000, 128), (0, 1)]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_mixed_rows_equal_the_reference_and_rows_alone_have_the_same_bits(size: tuple, dtype: torch.dtype) -> None:
    rows = make(*size, MIXED, dtype)
    together = fused.attend(*rows.arguments())
    assert_close(together, reference.attend(*_on_cpu(rows)), dtype)
    for sequence, row in ((0, 299), (1, 0), (2, 3), (4, 100)):
        alone = fused.attend(*rows.some(sequence, row, 1).arguments())
        assert_same_bits(alone[0], together[rows.sequences.index(sequence) + row])
    assert_same_bits(fused.attend(*rows.arguments(), slots=0), together)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_shared_prefix_read_once_gives_the_same_bits(dtype: torch.dtype) -> None:
    rows = make(32, 8, 128, 16, [(2048 + 40 * i, 1 + i % 5) for i in range(16)], dtype, shared=2048)
    assert_same_bits(fused.attend(*rows.arguments()), fused.attend(*rows.arguments(), cascade=False))


@pytest.mark.parametrize("heads", [16, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_latent_rows_equal_the_reference_and_splits_change_no_bit(dtype: torch.dtype, heads: int) -> None:
    spans, page = [(3000, 1), (1000, 40), (0, 20), (1022, 5)], 16
    needed = [-(-(start + count) // page) for start, count in spans]
    latents = random(sum(needed), page, 576, dtype=dtype)
    tables = torch.zeros(len(spans), max(needed), dtype=torch.int32)
    for index, pages in enumerate(needed):
        tables[index, :pages] = torch.arange(pages) + sum(needed[:index])
    positions = torch.cat([torch.arange(start, start + count) for start, count in spans]).int().to(device())
    starts = torch.tensor([0] + [count for _, count in spans]).cumsum(0).int().to(device())
    queries = random(len(positions), heads, 576, dtype=dtype, seed=1)
    arguments = (queries, latents, tables.to(device()), starts, positions, 576**-0.5, 512)
    whole = latent.attend(*arguments, slots=0)
    assert_close(whole, latent_reference.attend(*arguments), dtype)
    assert_same_bits(latent.attend(*arguments), whole)


def test_a_captured_launch_reads_what_a_later_step_puts_there() -> None:
    rows = make(32, 8, 128, 16, [(1000, 1), (3000, 5), (40, 20)], torch.bfloat16)
    width = max(map(len, rows.tables))
    tables = torch.tensor([table + [0] * (width - len(table)) for table in rows.tables], dtype=torch.int32).cuda()
    positions = torch.tensor(rows.places, dtype=torch.int32).cuda()
    work, partials = AttentionWork(32, 64, "cuda"), Partials.make(64, 32, 128, "cuda")
    out, limits = torch.zeros_like(rows.queries), fused.sizes(rows.queries, rows.keys, 64)
    arguments = rows.queries, rows.keys, rows.values, tables, positions, 128**-0.5, work, partials, out
    work.put(plan(limits, [0], [1], [1000]))
    fused.attend_planned(*arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fused.attend_planned(*arguments)
    firsts, counts = fused.runs(rows.sequences)
    torch.cuda.synchronize()
    work.put(plan(limits, firsts, counts, [rows.places[first] for first in firsts]))
    out.fill_(float("nan"))
    graph.replay()
    assert_same_bits(out, fused.attend(*rows.arguments()))


@pytest.mark.parametrize("split", [128, 256, 512])
def test_one_loop_over_all_splits_gives_the_bits_of_one_loop_a_split(split: int) -> None:
    rows = make(32, 8, 128, 16, MIXED, torch.bfloat16)
    used = fused.shape(128, 4, torch.bfloat16, architecture(device()))
    outs = [
        fused.attend(*rows.arguments(), split=split, slots=slots, chosen=replace(used, flat=flat))
        for flat, slots in ((False, 0), (True, 0), (False, 4096), (True, 4096))
    ]
    for out in outs[1:]:
        assert_same_bits(out, outs[0])


def test_every_launch_joins_all_parts_of_a_row() -> None:
    rows = make(32, 8, 128, 16, [(3000, 1), (4000, 5), (900, 1), (6000, 2)], torch.bfloat16)
    firsts, counts = fused.runs(rows.sequences)
    width = max(map(len, rows.tables))
    tables = torch.tensor([table + [0] * (width - len(table)) for table in rows.tables], dtype=torch.int32).cuda()
    positions = torch.tensor(rows.places, dtype=torch.int32).cuda()
    work, partials = AttentionWork(16, 512, "cuda"), Partials.make(512, 32, 128, "cuda")
    limits = fused.sizes(rows.queries, rows.keys, 512, split=128)
    made = plan(limits, firsts, counts, [rows.places[first] for first in firsts])
    assert made.joins[:, 2].min() > 1
    work.put(made)
    outs = [torch.empty_like(rows.queries) for _ in range(300)]
    for out in outs:
        # What an earlier launch left there must not be what is joined.
        partials.sums.fill_(float("nan"))
        fused.attend_planned(
            rows.queries, rows.keys, rows.values, tables, positions, 128**-0.5, work, partials, out, split=128
        )
    expected = fused.attend(*rows.arguments(), split=128, slots=0)
    assert all(torch.equal(out, expected) for out in outs) and not partials.arrived.any()


def test_addresses_beyond_32_bits_are_kept() -> None:
    pages, dtype = 70_000, torch.bfloat16
    keys = torch.zeros(pages, 8, 32, 128, dtype=dtype, device="cuda")
    values, slot = torch.zeros_like(keys), torch.tensor([(pages - 1) * 32 + 31], device="cuda")
    assert keys.numel() > 2**31
    qkv, queries = random(1, 48 * 128, dtype=dtype), torch.empty(1, 32, 128, dtype=dtype, device="cuda")
    turn = torch.ones(64, 64, device="cuda"), torch.zeros(64, 64, device="cuda")
    store.rotate_and_store(
        qkv, keys, values, slot, torch.tensor([31], dtype=torch.int32, device="cuda"), *turn, queries
    )
    assert_same_bits(values[-1, :, 31].flatten(), qkv[0, 40 * 128 :])
    rows = Rows(queries, keys, values, [[pages - 1]], [0], [31])
    assert_close(fused.attend(*rows.arguments()), reference.attend(*_on_cpu(rows)), dtype)


def _on_cpu(rows: Rows) -> tuple:
    """The reference looks at single rows: small copies of the pages in use are enough for it."""
    used = sorted({page for table in rows.tables for page in table})
    renamed = {page: index for index, page in enumerate(used)}
    tables = [[renamed[page] for page in table] for table in rows.tables]
    keys, values = (cache[used].cpu() for cache in (rows.keys, rows.values))
    return rows.queries.cpu(), keys, values, tables, rows.sequences, rows.places, rows.queries.shape[-1] ** -0.5
