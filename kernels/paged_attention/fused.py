"""Attention of any number of rows of any number of sequences over pages, in Triton: prefill chunks, drafts to verify
and single rows are one launch. What long contexts were split into is joined by the program that ends last.

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
from kernels.dependent import wait_for_kernel_before
from kernels.launch import architecture, launch, multiprocessors, power_of_two
from kernels.paged_attention.plan import ITEM, JOIN, Sizes, plan, shared_prefixes
from kernels.paged_attention.work import AttentionWork, Partials
from kernels.quant.fused import from_e4m3

LOG2_E = 1.4426950408889634
# Pairs of row and head that are joined at a time: eight tokens of a sequence with groups of four.
JOINED = 32


@triton.jit
def join(when, maximum, total, sums, other_maximum, other_total, other_sums):
    """Two parts of a softmax become one, where `when` is true. A part with nothing in it (maximum -inf, total and sums
    0), and one that isn't joined, change no bit of the other, but for the sign of a zero (`divided`). Rounding is
    spelled out, so that every kernel joins alike: a product, then one fused multiply-add."""
    top = tl.maximum(maximum, other_maximum)
    base = tl.where(top == -float("inf"), 0.0, top)
    mine = tl.where(when, tl.exp2(maximum - base), 1.0)
    others = tl.where(when, tl.exp2(other_maximum - base), 0.0)
    total = tl.fma(total, mine, other_total * others)
    mine, others = mine[:, None], others[:, None]
    sums = tl.fma(sums, tl.broadcast_to(mine, sums.shape), other_sums * others)
    return tl.where(when, top, maximum), total, sums


@triton.jit
def divided(sums, total, present):
    """Sums over their weights' total. A zero is +0, however many parts were joined."""
    share = tl.div_rn(tl.full(total.shape, 1.0, tl.float32), tl.where(present, total, 1.0))
    return sums * share[:, None] + 0.0


@triton.jit
def step(scores, maximum, total):
    """Scores (in powers of two) of one block to weights; what the sums so far are multiplied with."""
    top = tl.maximum(maximum, tl.max(scores, axis=1))
    base = tl.where(top == -float("inf"), 0.0, top)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(maximum - base)
    return weights, shrink, top, total * shrink + tl.sum(weights, axis=1)


@triton.jit
def sees(place, until, WINDOW: tl.constexpr):
    """[rows, places]: which places each row looks at: those before `until`, or the last WINDOW of them."""
    visible = place[None, :] < until[:, None]
    if WINDOW > 0:
        visible = visible & (place[None, :] >= until[:, None] - WINDOW)
    return visible


@triton.jit
def for_each(of_rows, ROWS: tl.constexpr, HEADS: tl.constexpr):
    """[ROWS] -> [ROWS * HEADS]: a number of a row for each of its heads."""
    return tl.reshape(tl.broadcast_to(of_rows[:, None], (ROWS, HEADS)), (ROWS * HEADS,))


@triton.jit
def join_last(
    partial_sums, partial_maxima, partial_totals, arrived, item_rows, joins, sinks, out,
    first, rows, block,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, JOIN: tl.constexpr,
    R: tl.constexpr, H: tl.constexpr, AT_ONCE: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Behind an item's partial results: of its rows, join the splits of those whose other items have all arrived, in
    their order. `arrived` counts the items of a row, for each block of GROUP heads. Whoever counts the last one sees
    what all others stored before they counted; it leaves 0 for the next launch.

    H heads of R rows at a time; the loads of AT_ONCE splits are under way together."""
    d = tl.arange(0, WIDE)
    r = tl.arange(0, R)
    # All threads have stored when one counts.
    tl.debug_barrier()
    for some in range(0, rows, R):
        there = some + r < rows
        row = tl.load(item_rows + first + some + r, mask=there, other=0)
        slot = tl.load(joins + row * JOIN, mask=there, other=0)
        count = tl.load(joins + row * JOIN + 1, mask=there, other=0)
        awaited = tl.load(joins + row * JOIN + 2, mask=there, other=0)
        counter = arrived + slot.to(tl.int64) * HEADS + block
        before = tl.atomic_add(counter, 1, mask=there, sem="acq_rel", scope="gpu")
        last = there & (before == awaited - 1)
        most = tl.max(tl.where(last, count, 0), axis=0)
        # One has counted when all threads load.
        tl.debug_barrier()
        if most > 0:
            tl.store(counter, tl.zeros([R], tl.int32), mask=last)
            for low in range(0, GROUP, H):
                nth = low + tl.arange(0, H)
                head = block * GROUP + nth
                known = tl.broadcast_to(((nth < GROUP) & (head < HEADS))[None, :], (R, H))
                present = for_each(last, R, H) & tl.reshape(known, (R * H,))
                head = tl.reshape(tl.broadcast_to(head[None, :], (R, H)), (R * H,))
                splits, left = for_each(count, R, H), for_each(slot, R, H).to(tl.int64) * HEADS + head
                maximum = tl.full([R * H], -float("inf"), tl.float32)
                total = tl.zeros([R * H], tl.float32)
                sums = tl.zeros([R * H, WIDE], tl.float32)
                for split in range(0, most, AT_ONCE):
                    for i in tl.static_range(AT_ONCE):
                        inside = present & (split + i < splits)
                        at = left + (split + i) * HEADS
                        other_maximum = tl.load(partial_maxima + at, mask=inside, other=-float("inf"))
                        other_total = tl.load(partial_totals + at, mask=inside, other=0.0)
                        whole = inside[:, None] & (d < D)[None, :]
                        other_sums = tl.load(partial_sums + at[:, None] * D + d[None, :], mask=whole, other=0.0)
                        maximum, total, sums = join(True, maximum, total, sums, other_maximum, other_total, other_sums)
                if SINKS:
                    sink = tl.load(sinks + head, mask=present, other=0.0)
                    alone, nothing = tl.full([R * H], 1.0, tl.float32), tl.zeros([R * H, WIDE], tl.float32)
                    maximum, total, sums = join(True, maximum, total, sums, sink, alone, nothing)
                result = divided(sums, total, present).to(out.dtype.element_ty)
                to = (for_each(row, R, H).to(tl.int64) * HEADS + head) * D
                tl.store(out + to[:, None] + d[None, :], result, mask=present[:, None] & (d < D)[None, :])


@triton.jit(do_not_specialize=["width"])
def attend_kernel(
    queries, keys, values, tables, positions, counts, items, item_rows, row_slots, joins,
    out, partial_sums, partial_maxima, partial_totals, arrived, sinks, scale, width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, SPLIT: tl.constexpr,
    WINDOW: tl.constexpr, SINKS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, WIDE: tl.constexpr, ITEM: tl.constexpr, JOIN: tl.constexpr,
    R: tl.constexpr, H: tl.constexpr, AT_ONCE: tl.constexpr, FLAT: tl.constexpr,
):  # fmt: skip
    """A program takes items, and of each one kv head, until there are none left: forth and back over the list, which is
    sorted by length. `scale` is in powers of two. M rows are (row, head of the group); N places at a time."""
    wait_for_kernel_before()
    GROUP: tl.constexpr = HEADS // KV_HEADS
    d = tl.arange(0, WIDE)
    m = tl.arange(0, M)
    n = tl.arange(0, N)
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
            until = tl.where(present, position + 1, 0)
            at = (row.to(tl.int64) * HEADS + head) * D
            whole = present[:, None] & (d < D)[None, :]
            query = tl.load(queries + at[:, None] + d[None, :], mask=whole, other=0.0)
            table = tables + sequence.to(tl.int64) * width

            maximum = tl.full([M], -float("inf"), tl.float32)
            total = tl.zeros([M], tl.float32)
            sums = tl.zeros([M, WIDE], tl.float32)
            # Of a partial item each split is stored by itself. Else, if FLAT, one loop goes over all of them, without a
            # branch: loads and products stay under way from split to split.
            stretch = end * 0 + SPLIT
            if FLAT:
                stretch = tl.where(partial != 0, SPLIT, end)
            for low in range(begin // SPLIT * SPLIT, end, stretch):
                split_maximum = tl.full([M], -float("inf"), tl.float32)
                split_total = tl.zeros([M], tl.float32)
                split_sums = tl.zeros([M, WIDE], tl.float32)
                for start in range(tl.maximum(low, begin // N * N), tl.minimum(low + stretch, end), N):
                    # No load leaves the pages of the item.
                    nth = tl.minimum(start // PAGE + n // PAGE, (end - 1) // PAGE)
                    within = n % PAGE
                    if N % PAGE != 0:
                        nth = tl.minimum((start + n) // PAGE, (end - 1) // PAGE)
                        within = (start + n) % PAGE
                    # Without a window, items begin where a split does.
                    if WINDOW > 0:
                        nth = tl.maximum(nth, begin // PAGE)
                    page = tl.load(table + nth).to(tl.int64)
                    kept = page * (KV_HEADS * PAGE * D) + (kv_head * PAGE + within) * D
                    # What lies before or behind may hold anything, NaN perhaps: keys' scores are overwritten, but a
                    # weight of 0 wouldn't silence values.
                    held = n < end - start
                    if WINDOW > 0:
                        held = held & (n >= begin - start)
                    if WIDE == D:
                        key = tl.load(keys + kept[:, None] + d[None, :])
                        value = tl.load(values + kept[:, None] + d[None, :], mask=held[:, None], other=0.0)
                    else:
                        key = tl.load(keys + kept[:, None] + d[None, :], mask=(d < D)[None, :], other=0.0)
                        block = held[:, None] & (d < D)[None, :]
                        value = tl.load(values + kept[:, None] + d[None, :], mask=block, other=0.0)
                    if keys.dtype.element_ty == tl.uint8:
                        key, value = from_e4m3(key).to(query.dtype), from_e4m3(value).to(query.dtype)
                    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
                    if FLAT:
                        # Where a split begins, the one before is joined: behind a product that waits for all before.
                        new = start % SPLIT == 0
                        maximum, total, sums = join(new, maximum, total, sums, split_maximum, split_total, split_sums)
                        split_maximum = tl.where(new, -float("inf"), split_maximum)
                    visible = sees(n, until - start, WINDOW)
                    scores = tl.where(visible, scores, -float("inf"))
                    weights, shrink, split_maximum, split_total = step(scores, split_maximum, split_total)
                    weights = weights.to(value.dtype)
                    split_sums = tl.dot(weights, value, split_sums * shrink[:, None], input_precision="ieee")
                if partial != 0:
                    slot = tl.load(row_slots + row, mask=present, other=0) + low // SPLIT
                    left = slot.to(tl.int64) * HEADS + head
                    tl.store(partial_maxima + left, split_maximum, mask=present)
                    tl.store(partial_totals + left, split_total, mask=present)
                    tl.store(partial_sums + left[:, None] * D + d[None, :], split_sums, mask=whole)
                else:
                    maximum, total, sums = join(True, maximum, total, sums, split_maximum, split_total, split_sums)
            if partial != 0:
                join_last(
                    partial_sums, partial_maxima, partial_totals, arrived, item_rows, joins, sinks, out,
                    first, rows, kv_head, HEADS, GROUP, D, WIDE, JOIN, R, H, AT_ONCE, SINKS,
                )  # fmt: skip
            else:
                if SINKS:
                    sink = tl.load(sinks + head, mask=present, other=0.0)
                    # A position of its own, without a value.
                    alone, nothing = tl.full([M], 1.0, tl.float32), tl.zeros([M, WIDE], tl.float32)
                    maximum, total, sums = join(True, maximum, total, sums, sink, alone, nothing)
                result = divided(sums, total, present)
                tl.store(out + at[:, None] + d[None, :], result.to(out.dtype.element_ty), mask=whole)


@dataclass(frozen=True, slots=True)
class FusedShape:
    m: int
    n: int
    warps: int
    stages: int
    programs_per_multiprocessor: int
    # Positions that are computed by themselves, and joined in order: a part of what a row's bits are.
    split: int = 512
    # One loop over all splits of an item that isn't partial: bits are the same. It takes registers.
    flat: bool = False


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
    if 90 <= arch < 100:
        return FusedShape(m, 64, 4, 5, 2, split=256, flat=True)
    return FusedShape(m, 32 if arch < 90 else 64, 4, 5, 2)


def sizes(
    queries: torch.Tensor, keys: torch.Tensor, slots: int, window: int = 0, split: int = 0,
    chosen: FusedShape | None = None,
) -> Sizes:  # fmt: skip
    """What a plan for these tensors must keep to. queries [R, heads, D], keys [pages, kv_heads, page_tokens, D]."""
    heads, head_dim = queries.shape[1:]
    kv_heads = keys.shape[1]
    chosen = chosen or shape(head_dim, heads // kv_heads, queries.dtype, architecture(queries.device))
    programs = multiprocessors(queries.device) * chosen.programs_per_multiprocessor
    group = heads // kv_heads
    return Sizes(chosen.m // group, group, kv_heads, split or chosen.split, programs, slots, window)


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
    split: int = 0,  # 0: `shape`'s
    sinks: torch.Tensor | None = None,  # [heads] float32, in powers of two
    chosen: FusedShape | None = None,  # for measurements: another than `shape`'s
) -> None:
    """Allocates nothing and reads nothing back: can be captured in a CUDA graph."""
    assert all(tensor.is_contiguous() for tensor in (queries, keys, values, tables, out))
    heads, head_dim = queries.shape[1:]
    kv_heads, page_tokens = keys.shape[1:3]
    chosen = chosen or shape(head_dim, heads // kv_heads, queries.dtype, architecture(queries.device))
    programs = multiprocessors(queries.device) * chosen.programs_per_multiprocessor
    split = split or chosen.split
    constants = _constants(heads, kv_heads, head_dim, page_tokens, split, window, chosen)
    constants["SINKS"] = sinks is not None
    launch(
        attend_kernel, (programs,), queries, keys, values, tables, positions,
        work.counts, work.items, work.item_rows, work.row_slots, work.joins,
        out, partials.sums, partials.maxima, partials.totals, partials.arrived,
        partials.maxima if sinks is None else sinks, scale * LOG2_E, tables.shape[1],
        warps=chosen.warps, stages=chosen.stages, **constants,
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
    *,
    split: int = 0,
    slots: int = 4096,
    cascade: bool = True,
    sinks: torch.Tensor | None = None,
    chosen: FusedShape | None = None,
) -> torch.Tensor:
    """As the reference, for rows of a sequence that stand together; rounded to the queries' dtype. It plans, allocates
    and computes: for tests, and as the example of how. An executor plans once a step, for all layers."""
    device = queries.device
    limits = sizes(queries, keys, slots, window, split, chosen)
    firsts, counts = runs(sequences)
    starts = [places[first] for first in firsts]
    padded = np.zeros((len(tables), max(map(len, tables))), np.int32)
    for row, pages in zip(padded, tables, strict=True):
        row[: len(pages)] = pages
    padded = padded[[sequences[first] for first in firsts]]
    shared = shared_prefixes(padded, starts, keys.shape[2], limits.split) if cascade else []
    work = AttentionWork(len(queries), slots, device)
    work.put(plan(limits, firsts, counts, starts, shared))
    out = torch.empty_like(queries)
    attend_planned(
        queries, keys, values, torch.from_numpy(padded).to(device),
        torch.tensor(list(places), dtype=torch.int32, device=device), scale,
        work, Partials.make(slots, *queries.shape[1:], device), out, window, split,
        None if sinks is None else sinks * LOG2_E, chosen,
    )  # fmt: skip
    return out


def runs(sequences: Sequence[int]) -> tuple[list[int], list[int]]:
    """First row and number of rows of each sequence, in the order in which they stand."""
    firsts = [row for row, s in enumerate(sequences) if row == 0 or sequences[row - 1] != s]
    assert len({sequences[first] for first in firsts}) == len(firsts), "rows of a sequence stand together"
    return firsts, [end - first for first, end in zip(firsts, [*firsts[1:], len(sequences)], strict=True)]


def _constants(
    heads: int, kv_heads: int, head_dim: int, page_tokens: int, split: int, window: int, chosen: FusedShape,
) -> dict[str, int | bool | str]:  # fmt: skip
    assert split % chosen.n == 0
    group = heads // kv_heads
    return {
        "HEADS": heads, "KV_HEADS": kv_heads, "D": head_dim, "PAGE": page_tokens, "SPLIT": split,
        "WINDOW": window,
        "M": chosen.m, "N": chosen.n, "WIDE": power_of_two(head_dim, 16), "ITEM": ITEM, "FLAT": chosen.flat,
        **joined(group, JOINED, head_dim),
    }  # fmt: skip


def joined(group: int, pairs: int, head_dim: int) -> dict[str, int]:
    """Rows and heads that are joined at a time, and splits whose loads are under way together."""
    heads = min(power_of_two(group), pairs)
    return {"JOIN": JOIN, "R": pairs // heads, "H": heads, "AT_ONCE": 4 if head_dim <= 128 else 2}


def compilations(arch: int) -> Iterator[Compilation]:
    """Shapes of Llama 8B, SmolLM2 in float32, wide heads with a window, heads of no power of two."""
    for name, dtype, heads, kv_heads, head_dim, window in (
        ("llama-8b", torch.bfloat16, 32, 8, 128, 0),
        ("llama-8b fp8 pages", torch.bfloat16, 32, 8, 128, 0),
        ("smollm2", torch.float32, 9, 3, 64, 0),
        ("wide", torch.float16, 16, 8, 256, 1024),
        ("uneven", torch.bfloat16, 32, 32, 80, 0),
        ("gpt-oss", torch.bfloat16, 64, 8, 64, 128),
    ):
        chosen = shape(head_dim, heads // kv_heads, dtype, arch)
        constants = _constants(heads, kv_heads, head_dim, 16, chosen.split, window, chosen)
        constants["SINKS"] = name == "gpt-oss"
        kind = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}[dtype]
        types = dict.fromkeys(("queries", "keys", "values", "out"), kind) | _TYPES
        types |= {"keys": "*u8", "values": "*u8"} if "fp8" in name else {}
        signature = signature_of(attend_kernel, types, constants)
        yield Compilation(f"attend {name}", attend_kernel, signature, constants, chosen.warps, chosen.stages)


_TYPES = dict.fromkeys(("tables", "positions", "counts", "items", "item_rows", "row_slots", "joins"), "*i32")
_TYPES["arrived"] = "*i32"
_TYPES |= dict.fromkeys(("partial_sums", "partial_maxima", "partial_totals", "sinks"), "*fp32")
_TYPES |= {"scale": "fp32", "width": "i32"}
