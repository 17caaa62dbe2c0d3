"""Attention over pages as compiled loops, without gathering a sequence's pages.

    keys   [pages, kv_heads, D, page_tokens]   a vector holds one dimension of 16 keys: no horizontal sums
    values [pages, kv_heads, page_tokens, D]   a vector holds 16 dimensions of one value

A row goes through its pages in order, with a running maximum and sum (online softmax). What is computed for a
row, and in which order, depends on its own position alone: its bits are the same in any batch, and however
the prompt was cut into chunks (law 3).

A tile is a few neighbouring rows of one sequence, which share the conversion of a page to float32. An item is
a tile and one kv head; items are independent, so threads may take any range of them.
"""

from __future__ import annotations

import numba
import numpy as np

from kernels.cpu_numbers import at_address, compiled, exp, get, load, put, store

# Loops over keys and dimensions are unrolled this far; head_dim and page_tokens must be multiples of it.
UNROLL = 8


@compiled
def rotate_and_store(
    qkv_address,
    queries,
    keys,
    values,
    slots,
    positions,
    cos,
    sin,
    rows,
    heads,
    kv_heads,
    head_dim,
    page_tokens,
):
    """Rotate q into `queries` (float32, scaled by 1/sqrt(D)); rotate k and put k and v into their slots.

    slots[row] = page · page_tokens + offset.
    """
    half = head_dim // 2
    width = (heads + 2 * kv_heads) * head_dim
    qkv = at_address(qkv_address, rows * width, keys)
    scale = np.float32(1.0) / np.sqrt(np.float32(head_dim))
    for row in range(rows):
        turn = positions[row] * half
        for head in range(heads):
            start, out = row * width + head * head_dim, (row * heads + head) * head_dim
            for i in range(half):
                a, b = load(qkv, start + i), load(qkv, start + half + i)
                c, s = get(cos, turn + i), get(sin, turn + i)
                put(queries, out + i, (a * c - b * s) * scale)
                put(queries, out + half + i, (b * c + a * s) * scale)
        page, offset = slots[row] // page_tokens, slots[row] % page_tokens
        for head in range(kv_heads):
            block = (page * kv_heads + head) * head_dim * page_tokens
            start = row * width + (heads + head) * head_dim
            for i in range(half):
                a, b = load(qkv, start + i), load(qkv, start + half + i)
                c, s = get(cos, turn + i), get(sin, turn + i)
                store(keys, block + i * page_tokens + offset, a * c - b * s)
                store(keys, block + (half + i) * page_tokens + offset, b * c + a * s)
            start += kv_heads * head_dim
            for i in range(head_dim):
                put(values, block + offset * head_dim + i, get(qkv, start + i))


@numba.njit(inline="always")
def _scores(query, q, keys, head_dim, page_tokens, scores):
    """scores[t] = query · keys[:, t] for every t of a page."""
    for t in range(page_tokens):
        put(scores, t, np.float32(0.0))
    for d in range(0, head_dim, UNROLL):
        for t in range(page_tokens):
            score = get(scores, t)
            for u in range(UNROLL):
                score += get(query, q + d + u) * get(keys, (d + u) * page_tokens + t)
            put(scores, t, score)


@numba.njit(inline="always")
def _add_values(weights, values, count, head_dim, sums, start):
    """sums += weights[t] · values[t, :] for t < count; weights are 0 from count to the next multiple."""
    for t in range(0, count, UNROLL):
        for d in range(head_dim):
            total = get(sums, start + d)
            for u in range(UNROLL):
                total += get(weights, t + u) * get(values, (t + u) * head_dim + d)
            put(sums, start + d, total)


@compiled
def attend(
    queries, keys, values, tables, table_width, tiles, first_item, last_item,
    positions, out, heads, kv_heads, head_dim, page_tokens,
):  # fmt: skip
    """Items first_item..last_item-1. tiles: (sequence, first row, rows) of each tile, flat."""
    group = heads // kv_heads
    block = head_dim * page_tokens
    page_keys = np.empty(block, np.float32)
    page_values = np.empty(block, np.float32)
    scores = np.empty(page_tokens, np.float32)
    for item in range(first_item, last_item):
        tile, kv_head = item // kv_heads, item % kv_heads
        table = tiles[tile * 3] * table_width
        first_row, rows = tiles[tile * 3 + 1], tiles[tile * 3 + 2]
        sums = np.zeros(rows * group * head_dim, np.float32)
        maxima = np.full(rows * group, np.float32(-np.inf), np.float32)
        totals = np.zeros(rows * group, np.float32)
        last_position = positions[first_row + rows - 1]
        for index in range(last_position // page_tokens + 1):
            at = (np.int64(tables[table + index]) * kv_heads + kv_head) * block
            filled = min(page_tokens, last_position + 1 - index * page_tokens)
            for i in range(block):
                put(page_keys, i, load(keys, at + i))
            for i in range(filled * head_dim):
                put(page_values, i, load(values, at + i))
            # Behind the last token a page holds anything, NaN perhaps, which a weight of 0 would not silence.
            for i in range(filled * head_dim, block):
                page_values[i] = np.float32(0.0)
            for r in range(rows):
                count = min(page_tokens, positions[first_row + r] + 1 - index * page_tokens)
                if count <= 0:
                    continue
                for g in range(group):
                    one = r * group + g
                    query = ((first_row + r) * heads + kv_head * group + g) * head_dim
                    _scores(queries, query, page_keys, head_dim, page_tokens, scores)
                    maximum = maxima[one]
                    for t in range(count):
                        maximum = max(maximum, get(scores, t))
                    if maximum != maxima[one]:
                        # The first page lands here with -inf: exp gives a tiny number, the sums are 0.
                        shrink = exp(maxima[one] - maximum)
                        totals[one] *= shrink
                        for d in range(head_dim):
                            put(sums, one * head_dim + d, get(sums, one * head_dim + d) * shrink)
                        maxima[one] = maximum
                    total = np.float32(0.0)
                    for t in range(count):
                        weight = exp(get(scores, t) - maximum)
                        put(scores, t, weight)
                        total += weight
                    for t in range(count, page_tokens):
                        put(scores, t, np.float32(0.0))
                    totals[one] += total
                    _add_values(scores, page_values, count, head_dim, sums, one * head_dim)
        for r in range(rows):
            for g in range(group):
                one = r * group + g
                to = ((first_row + r) * heads + kv_head * group + g) * head_dim
                share = np.float32(1.0) / totals[one]
                for d in range(head_dim):
                    store(out, to + d, get(sums, one * head_dim + d) * share)
