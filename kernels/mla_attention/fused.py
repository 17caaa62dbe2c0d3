"""Latent attention in absorbed form, in Triton: all heads of a row look at one shared key and value, the latent.

Plans, splits and joins are those of kernels/paged_attention; a tile's rows are (row, head) pairs. A latent is read
once, for scores and for sums. What a tile has summed is too wide for registers twice over, so between two splits of
a context it waits in a piece of memory of its program's own, small enough to stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
import triton
import triton.language as tl

from kernels.ahead_of_time import Compilation, signature_of
from kernels.dependent import wait_for_kernel_before
from kernels.launch import architecture, ceil_div, launch, multiprocessors, power_of_two
from kernels.mla_attention.reference import absorb, expand, split_up
from kernels.paged_attention.fused import LOG2_E, FusedShape, join_last, joined, sees, step
from kernels.paged_attention.plan import ITEM, Sizes, plan, shared_prefixes
from kernels.paged_attention.work import AttentionWork, Partials

# The linear halves of latent attention are matrix products; libraries have them.
__all__ = ["absorb", "attend", "attend_planned", "expand", "split_up"]

# As in paged_attention, a part of what a row's bits are. Larger, since a partial result is 512 numbers a head.
SPLIT = 1024
# Heads of a tile, at most.
HEADS_AT_ONCE = 64
# Heads that are joined at a time.
JOINED = 8


@triton.jit(do_not_specialize=["width"])
def attend_kernel(
    queries, latents, tables, positions, counts, items, item_rows, row_slots, joins,
    out, partial_sums, partial_maxima, partial_totals, arrived, waiting, scale, width,
    HEADS: tl.constexpr, GROUP: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, WIDE: tl.constexpr, TURNED: tl.constexpr, ITEM: tl.constexpr,
    JOIN: tl.constexpr, R: tl.constexpr, H: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """As kernels/paged_attention's, for blocks of GROUP heads instead of kv heads. waiting [programs, M, WIDE]."""
    wait_for_kernel_before()
    BLOCKS: tl.constexpr = (HEADS + GROUP - 1) // GROUP
    KEPT: tl.constexpr = LATENT + ROPE
    d = tl.arange(0, WIDE)
    e = tl.arange(0, TURNED)
    m = tl.arange(0, M)
    programs = tl.num_programs(0)
    place_to_wait = waiting + (tl.program_id(0).to(tl.int64) * M + m)[:, None] * WIDE + d[None, :]
    todo = tl.load(counts) * BLOCKS
    for turn in range(0, tl.cdiv(todo, programs)):
        own = tl.program_id(0) if turn % 2 == 0 else programs - 1 - tl.program_id(0)
        index = turn * programs + own
        if index < todo:
            item = items + (index // BLOCKS) * ITEM
            first, rows, sequence = tl.load(item), tl.load(item + 1), tl.load(item + 2)
            begin, end, partial = tl.load(item + 3), tl.load(item + 4), tl.load(item + 5)
            head = (index % BLOCKS) * GROUP + m % GROUP
            present = (m < rows * GROUP) & (head < HEADS)
            row = tl.load(item_rows + first + m // GROUP, mask=present, other=0)
            position = tl.load(positions + row, mask=present, other=0)
            until = tl.where(present, position + 1, 0)
            at = (row.to(tl.int64) * HEADS + head)[:, None]
            whole = present[:, None] & (d < LATENT)[None, :]
            edge = present[:, None] & (e < ROPE)[None, :]
            query = tl.load(queries + at * KEPT + d[None, :], mask=whole, other=0.0)
            turned = tl.load(queries + at * KEPT + LATENT + e[None, :], mask=edge, other=0.0)
            table = tables + sequence.to(tl.int64) * width

            maximum = tl.full([M], -float("inf"), tl.float32)
            total = tl.zeros([M], tl.float32)
            first_split, last_split = begin // SPLIT, (end - 1) // SPLIT
            for split in range(first_split, last_split + 1):
                split_maximum = tl.full([M], -float("inf"), tl.float32)
                split_total = tl.zeros([M], tl.float32)
                split_sums = tl.zeros([M, WIDE], tl.float32)
                for start in range(tl.maximum(split * SPLIT, begin // N * N), tl.minimum((split + 1) * SPLIT, end), N):
                    place = start + tl.arange(0, N)
                    held = (place >= begin) & (place < end)
                    page = tl.load(table + place // PAGE, mask=held, other=0).to(tl.int64)
                    kept = latents + ((page * PAGE + place % PAGE) * KEPT)[:, None]
                    latent = tl.load(kept + d[None, :], mask=held[:, None] & (d < LATENT)[None, :], other=0.0)
                    key = tl.load(kept + LATENT + e[None, :], mask=held[:, None] & (e < ROPE)[None, :], other=0.0)
                    scores = tl.dot(query, tl.trans(latent), input_precision="ieee")
                    scores = tl.dot(turned, tl.trans(key), scores, input_precision="ieee") * scale
                    visible = sees(place, until, 0)
                    scores = tl.where(visible, scores, -float("inf"))
                    weights, shrink, split_maximum, split_total = step(scores, split_maximum, split_total)
                    weights = weights.to(latent.dtype)
                    split_sums = tl.dot(weights, latent, split_sums * shrink[:, None], input_precision="ieee")
                if partial != 0:
                    slot = tl.load(row_slots + row, mask=present, other=0) + split
                    left = slot.to(tl.int64) * HEADS + head
                    tl.store(partial_maxima + left, split_maximum, mask=present)
                    tl.store(partial_totals + left, split_total, mask=present)
                    tl.store(partial_sums + left[:, None] * LATENT + d[None, :], split_sums, mask=whole)
                else:
                    # `join` of paged_attention, with sums that wait in memory: the same operations on each number.
                    top = tl.maximum(maximum, split_maximum)
                    base = tl.where(top == -float("inf"), 0.0, top)
                    mine, others = tl.exp2(maximum - base), tl.exp2(split_maximum - base)
                    total = tl.fma(total, mine, split_total * others)
                    maximum = top
                    later = tl.zeros([M], tl.int32) + (split - first_split) > 0
                    sums = tl.load(place_to_wait, mask=whole & later[:, None], other=0.0)
                    sums = tl.fma(sums, tl.broadcast_to(mine[:, None], sums.shape), split_sums * others[:, None])
                    if split < last_split:
                        # All of the program's threads have read what now is written, and then the other way round.
                        tl.debug_barrier()
                        tl.store(place_to_wait, sums, mask=whole)
                        tl.debug_barrier()
                    else:
                        share = tl.div_rn(tl.full([M], 1.0, tl.float32), tl.where(present, total, 1.0))
                        result = (sums * share[:, None]).to(out.dtype.element_ty)
                        tl.store(out + at * LATENT + d[None, :], result, mask=whole)
            if partial != 0:
                join_last(
                    partial_sums, partial_maxima, partial_totals, arrived, item_rows, joins, partial_maxima, out,
                    first, rows, index % BLOCKS, HEADS, GROUP, LATENT, WIDE, JOIN, R, H, AT_ONCE, False,
                )  # fmt: skip


def shape(latent_dim: int, heads: int, dtype: torch.dtype, arch: int) -> FusedShape:
    """One for every step, as in paged_attention. A latent's tile is wide, so there are few of its rows."""
    if dtype == torch.float32:
        return FusedShape(16, 16, 8, 1, 1)
    # A stage more fits on sm_90 only: sm_100 keeps sums in shared memory on their way to its tensor memory.
    return FusedShape(64, 32, 8, 5 if 90 <= arch < 100 else 4, 1)


def _group(heads: int, chosen: FusedShape) -> int:
    return min(heads, chosen.m, HEADS_AT_ONCE)


def sizes(queries: torch.Tensor, latent_dim: int, slots: int, split: int = SPLIT) -> Sizes:
    """What a plan for these tensors must keep to. queries [R, heads, latent + rope]."""
    heads = queries.shape[1]
    chosen = shape(latent_dim, heads, queries.dtype, architecture(queries.device))
    group = _group(heads, chosen)
    programs = multiprocessors(queries.device) * chosen.programs_per_multiprocessor
    return Sizes(chosen.m // group, group, ceil_div(heads, group), split, programs, slots)


@dataclass(slots=True)
class Waiting:
    """Where a program's sums wait between two splits; one for all layers of a step."""

    sums: torch.Tensor  # [programs, M, wide] float32

    @staticmethod
    def make(queries: torch.Tensor, latent_dim: int) -> Waiting:
        chosen = shape(latent_dim, queries.shape[1], queries.dtype, architecture(queries.device))
        programs = multiprocessors(queries.device) * chosen.programs_per_multiprocessor
        size = (programs, chosen.m, power_of_two(latent_dim, 16))
        return Waiting(torch.empty(size, dtype=torch.float32, device=queries.device))


def attend_planned(
    queries: torch.Tensor,  # [R, heads, latent + rope]
    latents: torch.Tensor,  # [pages, page_tokens, latent + rope]
    tables: torch.Tensor,  # [S, width] int32
    positions: torch.Tensor,  # [R] int32
    scale: float,
    latent_dim: int,
    work: AttentionWork,  # a plan made for `sizes` of the same arguments
    partials: Partials,
    waiting: Waiting,
    out: torch.Tensor,  # [R, heads, latent]: rows of the plan are written
    split: int = SPLIT,
) -> None:
    """Allocates nothing and reads nothing back: can be captured in a CUDA graph."""
    assert all(tensor.is_contiguous() for tensor in (queries, latents, tables, out))
    heads, kept = queries.shape[1:]
    chosen = shape(latent_dim, heads, queries.dtype, architecture(queries.device))
    constants = _constants(heads, latent_dim, kept - latent_dim, latents.shape[1], split, chosen)
    launch(
        attend_kernel, (len(waiting.sums),), queries, latents, tables, positions,
        work.counts, work.items, work.item_rows, work.row_slots, work.joins,
        out, partials.sums, partials.maxima, partials.totals, partials.arrived, waiting.sums,
        scale * LOG2_E, tables.shape[1],
        warps=chosen.warps, stages=chosen.stages, **constants,
    )  # fmt: skip


def attend(
    queries: torch.Tensor,
    latents: torch.Tensor,
    tables: torch.Tensor,
    query_starts: torch.Tensor,
    positions: torch.Tensor,
    scale: float,
    latent_dim: int,
    *,
    split: int = SPLIT,
    slots: int = 4096,
    cascade: bool = True,
) -> torch.Tensor:
    """As the reference; rounded to the queries' dtype. It plans, allocates and computes: for tests, and as the example
    of how. An executor plans once a step, for all layers."""
    device, heads = queries.device, queries.shape[1]
    bounds = query_starts.tolist()
    counts = [end - first for first, end in pairwise(bounds)]
    starts = [int(positions[first]) for first in bounds[:-1]]
    pages = tables.cpu().numpy()
    shared = shared_prefixes(pages, starts, latents.shape[1], split) if cascade else []
    work = AttentionWork(len(queries), slots, device)
    work.put(plan(sizes(queries, latent_dim, slots, split=split), bounds[:-1], counts, starts, shared))
    out = torch.empty(len(queries), heads, latent_dim, dtype=queries.dtype, device=device)
    attend_planned(
        queries, latents, tables, positions, scale, latent_dim, work,
        Partials.make(slots, heads, latent_dim, device), Waiting.make(queries, latent_dim), out, split=split,
    )  # fmt: skip
    return out


def _constants(
    heads: int, latent_dim: int, rope: int, page_tokens: int, split: int, chosen: FusedShape
) -> dict[str, object]:
    assert split % chosen.n == 0
    return {
        "HEADS": heads, "GROUP": _group(heads, chosen), "LATENT": latent_dim, "ROPE": rope, "PAGE": page_tokens,
        "SPLIT": split,
        "M": chosen.m, "N": chosen.n, "WIDE": power_of_two(latent_dim, 16), "TURNED": power_of_two(rope, 16),
        "ITEM": ITEM, **joined(_group(heads, chosen), JOINED, latent_dim),
    }  # fmt: skip


def compilations(arch: int) -> Iterator[Compilation]:
    """Shapes of DeepSeek-V3 and of its smaller sister with 16 heads."""
    for name, dtype, heads in (
        ("deepseek-v3", torch.bfloat16, 128),
        ("deepseek-v2-lite", torch.float16, 16),
        ("float32", torch.float32, 16),
    ):
        chosen = shape(512, heads, dtype, arch)
        constants = _constants(heads, 512, 64, 16, SPLIT, chosen)
        kind = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}[dtype]
        types = dict.fromkeys(("queries", "latents", "out"), kind) | _TYPES
        signature = signature_of(attend_kernel, types, constants)
        yield Compilation(f"latent attend {name}", attend_kernel, signature, constants, chosen.warps, chosen.stages)


_TYPES = dict.fromkeys(("tables", "positions", "counts", "items", "item_rows", "row_slots", "joins"), "*i32")
_TYPES["arrived"] = "*i32"
_TYPES |= dict.fromkeys(("partial_sums", "partial_maxima", "partial_totals", "waiting"), "*fp32")
_TYPES |= {"scale": "fp32", "width": "i32"}
