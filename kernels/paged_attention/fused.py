"""Attention of any number of rows of any number of sequences over pages, in Triton: prefill chunks, drafts to verify
and single rows are one launch, and a second one joins what long contexts were split into.

plan.py says who computes what; what a row's numbers are is fixed by its own context (README.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from kernels.ahead_of_time import Compilation, signature_of
from kernels.dependent import start_next_early, wait_for_kernel_before
from kernels.launch import architecture, launch, multiprocessors, power_of_two
from kernels.paged_attention.plan import ITEM, JOIN, Sizes, plan, shared_prefixes
from kernels.paged_attention.work import AttentionWork, Partials
from kernels.quant.fused import from_e4m3

LOG2_E = 1.4426950408889634
# Positions that are computed by themselves, and joined in order: a part of what a row's bits are.
SPLIT = 512


@triton.jit
def join(maximum, total, sums, other_maximum, other_total, other_sums):
    """Two parts of a softmax become one. A part with nothing in it (maximum -inf, total and sums 0) changes no bit of
    the other. Rounding is spelled out, so that every kernel joins alike: a product, then one fused multiply-add."""
    top = tl.maximum(maximum, other_maximum)
    base = tl.where(top == -float("inf"), 0.0, top)
    mine, others = tl.exp2(maximum - base), tl.exp2(other_maximum - base)
    total = tl.fma(total, mine, other_total * others)
    mine, others = mine[:, None], others[:, None]
    sums = tl.fma(sums, tl.broadcast_to(mine, sums.shape), other_sums * others)
    return top, total, sums


@triton.jit
def step(scores, maximum, total):
    """Scores (in powers of two) of one block to weights; what the sums so far are multiplied with."""
    top = tl.maximum(maximum, tl.max(scores, axis=1))
    base = tl.where(top == -float("inf"), 0.0, top)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(maximum - base)
    return weights, shrink, top, total * shrink + tl.sum(weights, axis=1)


@triton.jit
def sees(place, position, seen, bits, WINDOW: tl.constexpr, TREE: tl.constexpr):
    """[rows, places]: which places each row looks at."""
    behind = place[None, :] - seen[:, None]
    visible = behind < 0
    if WINDOW > 0:
        visible = visible & (place[None, :] > position[:, None] - WINDOW)
    if TREE:
        bit = (bits[:, None] >> tl.minimum(tl.maximum(behind, 0), 63).to(tl.int64)) & 1
        visible = visible | ((behind >= 0) & (behind < 64) & (bit == 1))
    return visible


@triton.jit(do_not_specialize=["width"])
def attend_kernel(
    queries, keys, values, tables, positions, seen, tree, counts, items, item_rows, row_slots,
    out, partial_sums, partial_maxima, partial_totals, sinks, scale, width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, SPLIT: tl.constexpr,
    WINDOW: tl.constexpr, TREE: tl.constexpr, SINKS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, WIDE: tl.constexpr, ITEM: tl.constexpr,
):  # fmt: skip
    """A program takes items, and of each one kv head, until there are none left: forth and back over the list, which is
    sorted by length. `scale` is in powers of two. M rows are (row, head of the group); N places at a time."""
    wait_for_kernel_before()
    GROUP: tl.constexpr = HEADS // KV_HEADS
    d = tl.arange(0, WIDE)
    m = tl.arange(0, M)
    programs = tl.num_programs(0)
    todo = tl.load(counts) * KV_HEADS
    for turn in range(0, tl.cdiv(todo, programs)):
        own = tl.program_id(0) if turn % 2 == 0 else programs - 1 - tl.program_id(0)
        index = turn * programs + own
        if index < todo:
            item = items + (index // KV_HEADS) * ITEM
            kv_head = index % KV_HEADS
            first, rows, sequence = tl.load(item), tl.load(item + 1), tl.load(item + 2)
            begin, end, partial = tl.load(item + 3), tl.load(item + 4), tl.load(item + 5)
            present = m < rows * GROUP
            row = tl.load(item_rows + first + m // GROUP, mask=present, other=0)
            head = kv_head * GROUP + m % GROUP
            position = tl.load(positions + row, mask=present, other=0)
            # What is no row sees nothing.
            if TREE:
                until = tl.load(seen + row, mask=present, other=0)
                bits = tl.load(tree + row, mask=present, other=0)
            else:
                until = tl.where(present, position + 1, 0)
                bits = until
            at = (row.to(tl.int64) * HEADS + head) * D
            whole = present[:, None] & (d < D)[None, :]
            query = tl.load(queries + at[:, None] + d[None, :], mask=whole, other=0.0)
            table = tables + sequence.to(tl.int64) * width

            maximum = tl.full([M], -float("inf"), tl.float32)
            total = tl.zeros([M], tl.float32)
            sums = tl.zeros([M, WIDE], tl.float32)
            for split in range(begin // SPLIT, (end - 1) // SPLIT + 1):
                split_maximum = tl.full([M], -float("inf"), tl.float32)
                split_total = tl.zeros([M], tl.float32)
                split_sums = tl.zeros([M, WIDE], tl.float32)
                low = tl.maximum(split * SPLIT, begin // N * N)
                high = tl.minimum((split + 1) * SPLIT, end)
                for start in range(low, high, N):
                    place = start + tl.arange(0, N)
                    # What lies before or behind may hold anything, NaN perhaps, which a weight of 0 wouldn't silence.
                    held = (place >= begin) & (place < end)
                    page = tl.load(table + place // PAGE, mask=held, other=0).to(tl.int64)
                    kept = ((page * KV_HEADS + kv_head) * PAGE + place % PAGE) * D
                    block = held[:, None] & (d < D)[None, :]
                    key = tl.load(keys + kept[:, None] + d[None, :], mask=block, other=0.0)
                    value = tl.load(values + kept[:, None] + d[None, :], mask=block, other=0.0)
                    if keys.dtype.element_ty == tl.uint8:
                        key, value = from_e4m3(key).to(query.dtype), from_e4m3(value).to(query.dtype)
                    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
                    visible = sees(place, position, until, bits, WINDOW, TREE)
                    scores = tl.where(visible, scores, -float("inf"))
                    weights, shrink, split_maximum, split_total = step(scores, split_maximum, split_total)
                    weights = weights.to(value.dtype)
                    split_sums = tl.dot(weights, value, split_sums * shrink[:, None], input_precision="ieee")
                if partial != 0:
                    slot = tl.load(row_slots + row, mask=present, other=0) + split
                    left = slot.to(tl.int64) * HEADS + head
                    tl.store(partial_maxima + left, split_maximum, mask=present)
                    tl.store(partial_totals + left, split_total, mask=present)
                    tl.store(partial_sums + left[:, None] * D + d[None, :], split_sums, mask=whole)
                else:
                    maximum, total, sums = join(maximum, total, sums, split_maximum, split_total, split_sums)
            if partial == 0:
                if SINKS:
                    sink = tl.load(sinks + head, mask=present, other=0.0)
                    # A position of its own, without a value.
                    alone, nothing = tl.full([M], 1.0, tl.float32), tl.zeros([M, WIDE], tl.float32)
                    maximum, total, sums = join(maximum, total, sums, sink, alone, nothing)
                share = tl.div_rn(tl.full([M], 1.0, tl.float32), tl.where(present, total, 1.0))
                result = sums * share[:, None]
                tl.store(out + at[:, None] + d[None, :], result.to(out.dtype.element_ty), mask=whole)


@triton.jit
def join_kernel(
    counts, joins, partial_sums, partial_maxima, partial_totals, sinks, out,
    HEADS: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, JOIN: tl.constexpr, AT_ONCE: tl.constexpr,
    SINKS: tl.constexpr,
):  # fmt: skip
    """A program takes one head of a row, and joins its splits in their order. AT_ONCE: whose loads are under way."""
    start_next_early()
    wait_for_kernel_before()
    d = tl.arange(0, WIDE)
    one = tl.arange(0, 1)
    todo = tl.load(counts + 1) * HEADS
    for index in range(tl.program_id(0), todo, tl.num_programs(0)):
        entry = joins + (index // HEADS) * JOIN
        head = index % HEADS
        row, slot, count = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
        maximum = tl.full([1], -float("inf"), tl.float32)
        total = tl.zeros([1], tl.float32)
        sums = tl.zeros([1, WIDE], tl.float32)
        for first in range(0, count, AT_ONCE):
            for i in tl.static_range(AT_ONCE):
                there = (one + first + i) < count
                left = (slot + first + i + one).to(tl.int64) * HEADS + head
                other_maximum = tl.load(partial_maxima + left, mask=there, other=-float("inf"))
                other_total = tl.load(partial_totals + left, mask=there, other=0.0)
                both = there[:, None] & (d < D)[None, :]
                other_sums = tl.load(partial_sums + left[:, None] * D + d[None, :], mask=both, other=0.0)
                maximum, total, sums = join(maximum, total, sums, other_maximum, other_total, other_sums)
        if SINKS:
            sink = tl.load(sinks + head + one)
            alone, nothing = tl.full([1], 1.0, tl.float32), tl.zeros([1, WIDE], tl.float32)
            maximum, total, sums = join(maximum, total, sums, sink, alone, nothing)
        at = (row.to(tl.int64) * HEADS + head) * D
        result = (sums * tl.div_rn(tl.full([1], 1.0, tl.float32), total)[:, None]).to(out.dtype.element_ty)
        tl.store(out + at + one[:, None] + d[None, :], result, mask=(one == 0)[:, None] & (d < D)[None, :])


@dataclass(frozen=True, slots=True)
class FusedShape:
    m: int
    n: int
    warps: int
    stages: int
    programs_per_multiprocessor: int


def shape(head_dim: int, group: int, dtype: torch.dtype, arch: int) -> FusedShape:
    """One for every step: which instructions multiply and in which order a row is summed hang on it. 64 rows fill one
    group of four warps, each row within one of them. The compiler takes two of the stages for the pages' numbers, which
    keys wait for; with 5 the copy of one block is under way while another is computed."""
    if dtype == torch.float32:
        return FusedShape(power_of_two(group, 16), 32, 4, 2, 2)
    m = power_of_two(group, 64)
    if power_of_two(head_dim, 16) > 128 or m > 64:
        return FusedShape(m, 32, 8, 5, 1)
    # Two programs must find room beside each other.
    return FusedShape(m, 32 if arch < 90 else 64, 4, 5, 2)


def sizes(
    queries: torch.Tensor, keys: torch.Tensor, slots: int, window: int = 0, trees: bool = False, split: int = SPLIT
) -> Sizes:
    """What a plan for these tensors must keep to. queries [R, heads, D], keys [pages, kv_heads, page_tokens, D]."""
    heads, head_dim = queries.shape[1:]
    kv_heads = keys.shape[1]
    chosen = shape(head_dim, heads // kv_heads, queries.dtype, architecture(queries.device))
    programs = multiprocessors(queries.device) * chosen.programs_per_multiprocessor
    group = heads // kv_heads
    return Sizes(chosen.m // group, group, kv_heads, split, programs, slots, window, trees)


def attend_planned(
    queries: torch.Tensor,  # [R, heads, D]
    keys: torch.Tensor,  # [pages, kv_heads, page_tokens, D]; bytes: e4m3
    values: torch.Tensor,
    tables: torch.Tensor,  # [S, width] int32
    positions: torch.Tensor,  # [R] int32
    scale: float,
    work: AttentionWork,  # a plan made for `sizes` of the same arguments
    partials: Partials,
    out: torch.Tensor,  # [R, heads, D]: rows of the plan are written
    window: int = 0,
    # Of trees: a row sees places 0 .. seen - 1 [R] int32, and place seen + i for every bit i of tree [R] int64.
    seen: torch.Tensor | None = None,
    tree: torch.Tensor | None = None,
    split: int = SPLIT,
    sinks: torch.Tensor | None = None,  # [heads] float32, in powers of two
) -> None:
    """Allocates nothing and reads nothing back: can be captured in a CUDA graph."""
    assert all(tensor.is_contiguous() for tensor in (queries, keys, values, tables, out))
    assert (seen is None) == (tree is None)
    heads, head_dim = queries.shape[1:]
    kv_heads, page_tokens = keys.shape[1:3]
    chosen = shape(head_dim, heads // kv_heads, queries.dtype, architecture(queries.device))
    programs = multiprocessors(queries.device) * chosen.programs_per_multiprocessor
    constants = _constants(heads, kv_heads, head_dim, page_tokens, split, window, tree is not None, chosen)
    constants["SINKS"] = sinks is not None
    launch(
        attend_kernel, (programs,), queries, keys, values, tables, positions,
        # Where there are no trees the kernel gets something to hold in their place.
        positions if seen is None else seen, positions if tree is None else tree,
        work.counts, work.items, work.item_rows, work.row_slots,
        out, partials.sums, partials.maxima, partials.totals, partials.maxima if sinks is None else sinks,
        scale * LOG2_E, tables.shape[1],
        warps=chosen.warps, stages=chosen.stages, **constants,
    )  # fmt: skip
    join_planned(work, partials, out, sinks)


def join_planned(work: AttentionWork, partials: Partials, out: torch.Tensor, sinks: torch.Tensor | None = None) -> None:
    if work.slots == 0:
        return
    heads, width = out.shape[1:]
    launch(
        join_kernel, (multiprocessors(out.device) * 4,), work.counts, work.joins,
        partials.sums, partials.maxima, partials.totals, partials.maxima if sinks is None else sinks, out, warps=1,
        SINKS=sinks is not None, **_join_constants(heads, width),
    )  # fmt: skip


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: Sequence[Sequence[int]],
    sequences: Sequence[int],
    places: Sequence[int],
    scale: float,
    window: int = 0,
    ancestors: Sequence[int] | None = None,
    *,
    split: int = SPLIT,
    slots: int = 4096,
    cascade: bool = True,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """As the reference, for rows of a sequence that stand together; rounded to the queries' dtype. It plans, allocates
    and computes: for tests, and as the example of how. An executor plans once a step, for all layers."""
    device = queries.device
    limits = sizes(queries, keys, slots, window, ancestors is not None, split)
    firsts, counts = runs(sequences)
    starts = [places[first] for first in firsts]
    padded = np.zeros((len(tables), max(map(len, tables))), np.int32)
    for row, pages in zip(padded, tables, strict=True):
        row[: len(pages)] = pages
    padded = padded[[sequences[first] for first in firsts]]
    shared = shared_prefixes(padded, starts, keys.shape[2], split) if cascade else []
    work = AttentionWork(len(queries), slots, device)
    work.put(plan(limits, firsts, counts, starts, shared))
    positions, seen, tree = list(places), None, None
    if ancestors is not None:
        begins = [start for start, count in zip(starts, counts, strict=True) for _ in range(count)]
        positions = [begin + bits.bit_count() - 1 for begin, bits in zip(begins, ancestors, strict=True)]
        seen = torch.tensor(begins, dtype=torch.int32, device=device)
        tree = torch.from_numpy(np.array(ancestors, np.uint64).view(np.int64)).to(device)
    out = torch.empty_like(queries)
    attend_planned(
        queries, keys, values, torch.from_numpy(padded).to(device),
        torch.tensor(positions, dtype=torch.int32, device=device), scale,
        work, Partials.make(slots, *queries.shape[1:], device), out, window, seen, tree, split,
        None if sinks is None else sinks * LOG2_E,
    )  # fmt: skip
    return out


def runs(sequences: Sequence[int]) -> tuple[list[int], list[int]]:
    """First row and number of rows of each sequence, in the order in which they stand."""
    firsts = [row for row, s in enumerate(sequences) if row == 0 or sequences[row - 1] != s]
    assert len({sequences[first] for first in firsts}) == len(firsts), "rows of a sequence stand together"
    return firsts, [end - first for first, end in zip(firsts, [*firsts[1:], len(sequences)], strict=True)]


def _constants(
    heads: int, kv_heads: int, head_dim: int, page_tokens: int, split: int, window: int, tree: bool,
    chosen: FusedShape,
) -> dict[str, int | bool | str]:  # fmt: skip
    assert split % chosen.n == 0
    return {
        "HEADS": heads, "KV_HEADS": kv_heads, "D": head_dim, "PAGE": page_tokens, "SPLIT": split,
        "WINDOW": window, "TREE": tree,
        "M": chosen.m, "N": chosen.n, "WIDE": power_of_two(head_dim, 16), "ITEM": ITEM,
    }  # fmt: skip


def _join_constants(heads: int, width: int) -> dict[str, int]:
    return {"HEADS": heads, "D": width, "WIDE": power_of_two(width, 16), "JOIN": JOIN, "AT_ONCE": 8}


def compilations(arch: int) -> Iterator[Compilation]:
    """Shapes of Llama 8B, also with trees, SmolLM2 in float32, wide heads with a window, heads of no power of two."""
    for name, dtype, heads, kv_heads, head_dim, window, tree in (
        ("llama-8b", torch.bfloat16, 32, 8, 128, 0, False),
        ("llama-8b trees", torch.bfloat16, 32, 8, 128, 0, True),
        ("llama-8b fp8 pages", torch.bfloat16, 32, 8, 128, 0, False),
        ("smollm2", torch.float32, 9, 3, 64, 0, False),
        ("wide", torch.float16, 16, 8, 256, 1024, False),
        ("uneven", torch.bfloat16, 32, 32, 80, 0, False),
        ("gpt-oss", torch.bfloat16, 64, 8, 64, 128, False),
    ):
        chosen = shape(head_dim, heads // kv_heads, dtype, arch)
        constants = _constants(heads, kv_heads, head_dim, 16, SPLIT, window, tree, chosen)
        constants["SINKS"] = sinks = name == "gpt-oss"
        kind = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}[dtype]
        types = dict.fromkeys(("queries", "keys", "values", "out"), kind) | _TYPES
        types |= {"keys": "*u8", "values": "*u8"} if "fp8" in name else {}
        signature = signature_of(attend_kernel, types | {"tree": "*i64" if tree else "*i32"}, constants)
        yield Compilation(f"attend {name}", attend_kernel, signature, constants, chosen.warps, chosen.stages)
        if not tree and "fp8" not in name:
            constants = _join_constants(heads, head_dim) | {"SINKS": sinks}
            yield Compilation(f"join {name}", join_kernel, signature_of(join_kernel, types, constants), constants, 1)


_TYPES = dict.fromkeys(("tables", "positions", "seen", "counts", "items", "item_rows", "row_slots", "joins"), "*i32")
_TYPES |= dict.fromkeys(("partial_sums", "partial_maxima", "partial_totals", "sinks"), "*fp32")
_TYPES |= {"scale": "fp32", "width": "i32"}
