"""Which pieces of a step's attention are computed by whom: from rows and contexts to a list of items. No torch.

What a row's numbers are is fixed by its own context alone: it sees its keys in splits of `split` positions that begin
at multiples of `split`, each computed by itself, and joined in their order. The plan only decides who computes which
split for which rows, and so may look at the whole batch:

    rows of a sequence    tiles of at most `tile_rows`     items
    ┌────────────────┐    ┌──────┐
    │ 40 rows        │ →  │ 0..15│ → all its splits, joined in registers               (a "whole" item)
    │ from 3000      │    │16..31│ → …
    └────────────────┘    │32..39│
    ┌────────────────┐    ┌──────┐    ┌ split 0 ┐ → partial ┐
    │ 1 row at 9000  │ →  │ 0    │ →  │ split 1 │ → partial ├ → joined by who ends last
    └────────────────┘    └──────┘    └ …       ┘ → partial ┘

    rows of many sequences whose first splits lie in the same pages: tiles of any 16 of these rows take a shared split
    at once (cascade); what is each one's own follows as above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np

from kernels.cpu_program import compiled

# Numbers of an item: first place in `item_rows`, rows, sequence, first position, end position, partial.
ITEM = 8
# Numbers of a row's join: first slot, slots, items that fill them.
JOIN = 3
# A tile with no more rows of a matrix than this writes little when it is split.
FEW_ROWS = 16
# How much longer than the average program the longest may take before tiles are split.
UNEVEN = 1.15


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a plan may know of the kernel and the machine."""

    tile_rows: int  # rows of a tile; times `group` they are the rows of its matrices
    group: int  # query heads that share a key
    kv_heads: int  # items are taken once for each
    split: int
    programs: int  # that run at the same time
    slots: int  # partial results that there is memory for
    window: int = 0


@dataclass(slots=True)
class Plan:
    items: np.ndarray  # [I, ITEM] int32, longest first
    item_rows: np.ndarray  # int32: the rows of all items
    row_slots: np.ndarray  # [R] int32: split s of a row has slot row_slots[row] + s
    joins: np.ndarray  # [R, JOIN] int32: of rows that are computed split by split


def plan(
    sizes: Sizes,
    first_rows: Sequence[int],
    row_counts: Sequence[int],
    starts: Sequence[int],
    shared: Sequence[int] = (),
) -> Plan:
    """Sequence s has rows first_rows[s] .. + row_counts[s], which stand at starts[s] .. of its context. `shared`: of
    each group of sequences whose first positions lie in the same pages, the number of these positions, the number of
    sequences, and the sequences (`shared_prefixes` finds them)."""
    columns = (first_rows, row_counts, starts, shared)
    firsts, counts, starts, shared = (np.array(column, np.int64) for column in columns)
    rows = int(counts.sum())
    made = Plan(
        items=np.empty((rows + sizes.slots, ITEM), np.int32),
        item_rows=np.empty(2 * rows, np.int32),
        row_slots=np.empty(int((firsts + counts).max(initial=0)), np.int32),
        joins=np.empty((int((firsts + counts).max(initial=0)), JOIN), np.int32),
    )
    items, item_rows = write_plan(made, sizes, firsts, counts, starts, shared)
    return Plan(made.items[:items], made.item_rows[:item_rows], made.row_slots, made.joins)


def write_plan(
    into: Plan,
    sizes: Sizes,
    first_rows: np.ndarray,
    row_counts: np.ndarray,
    starts: np.ndarray,
    shared: np.ndarray,
) -> tuple[int, int]:
    """`plan` into arrays that are there: `into` has room for rows + slots items, 2 · rows item rows and rows joins. The
    numbers of items and item rows. The other arrays are int64, and all are contiguous: compiled once, for these
    types."""
    return _write(
        into.items, into.item_rows, into.row_slots, into.joins, first_rows, row_counts, starts, shared,
        sizes.tile_rows, sizes.group, sizes.kv_heads, sizes.split, sizes.programs, sizes.slots, sizes.window,
    )  # fmt: skip


def shared_prefixes(tables: np.ndarray, starts: Sequence[int], page_tokens: int, split: int) -> np.ndarray:
    """Sequences that begin with the same pages, and how many positions, in whole splits, they share: for `plan`. tables
    [S, width] int32: the pages of each sequence; only positions before its first row count."""
    tables, starts = np.ascontiguousarray(tables, np.int32), np.ascontiguousarray(starts, np.int64)
    # Room for groups of two, and for one sequence that is left over.
    found = np.empty(2 * len(starts) + 1, np.int64)
    first_pages = tables[starts >= split, 0].tolist()
    # Most steps: no two sequences begin with the same page.
    if split % page_tokens or len(set(first_pages)) == len(first_pages):
        tables, starts = tables[:0], starts[:0]
    return found[: _shared_prefixes(found, tables, starts, split // page_tokens, split)]


# Compiled ------------------------------------------------------------------------------------------------------------

# Columns of tiles and of items, int64. The first is a tile's first row, and an item's first place in `item_rows`; they
# see positions begin .. end - 1. A partial tile is computed split by split.
_FIRST, _ROWS, _SEQUENCE, _BEGIN, _END, _PARTIAL, _COLUMNS = range(7)
_inner = numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


@compiled
def _shared_prefixes(found, tables, starts, pages, split):
    """Write the groups to `found`; the number of words. `pages`: of a split."""
    grouped = np.zeros(len(starts), np.uint8)
    end = 0
    for s in range(len(starts)):
        if grouped[s] or starts[s] < split:
            continue
        found[end + 2], members, least = s, 1, starts[s]
        for other in range(s + 1, len(starts)):
            if starts[other] >= split and _same_pages(tables, s, other, pages) == pages:
                found[end + 2 + members] = other
                members, least = members + 1, min(least, starts[other])
                grouped[other] = 1
        if members > 1:
            common = least // split * pages
            for member in range(1, members):
                common = _same_pages(tables, s, found[end + 2 + member], common)
            found[end], found[end + 1] = common // pages * split, members
            end += 2 + members
    return end


@compiled
def _write(
    items, item_rows, row_slots, joins, firsts, counts, starts, groups,
    tile_rows, group, kv_heads, split, programs, slots, window,
):  # fmt: skip
    # Where a sequence's own part begins: behind the positions that it shares.
    begins = np.zeros(len(starts), np.int64)
    taken = _cascades(begins, groups, counts, starts, tile_rows, split, slots, window)
    tiles = _tiles(firsts, counts, starts, begins, tile_rows, window)
    together = _split(tiles, begins, group, kv_heads, split, programs, slots - taken)
    used = _slots(row_slots, joins, tiles, begins, split, together)
    # An item of a split needs a slot for each of its rows.
    made = np.empty((len(tiles) + used, _COLUMNS), np.int64)
    number, placed = _own_items(made, item_rows, tiles, split, together)
    number, placed = _shared_items(made, item_rows, number, placed, firsts, counts, begins, groups, tile_rows, split)
    order = _longest_first(made[:number])
    for item in range(number):
        for column in range(ITEM):
            items[item, column] = made[order[item], column] if column < _COLUMNS else 0
    return number, placed


@_inner
def _same_pages(tables, one, other, most):
    """How many of the first pages are the same, `most` at most."""
    for page in range(most):
        if tables[one, page] != tables[other, page]:
            return page
    return most


@_inner
def _own_items(made, item_rows, tiles, split, together):
    """A whole tile is one item; of others, each `together` splits are one."""
    number = placed = 0
    for tile in range(len(tiles)):
        begin, end, partial = tiles[tile, _BEGIN], tiles[tile, _END], tiles[tile, _PARTIAL]
        low = begin
        while low < end:
            high = min(end, (low // split + together) * split) if partial else end
            made[number, _FIRST], made[number, _ROWS] = placed, tiles[tile, _ROWS]
            made[number, _SEQUENCE], made[number, _PARTIAL] = tiles[tile, _SEQUENCE], partial
            made[number, _BEGIN], made[number, _END] = low, high
            low = high
            number += 1
        for row in range(tiles[tile, _ROWS]):
            item_rows[placed] = tiles[tile, _FIRST] + row
            placed += 1
    return number, placed


@_inner
def _shared_items(made, item_rows, number, placed, firsts, counts, begins, groups, tile_rows, split):
    """Any `tile_rows` rows of the sequences that share their first splits take one of them at once."""
    at = 0
    while at < len(groups):
        tokens, members = groups[at], groups[at + 1]
        at += 2
        sequence, place = groups[at], placed
        if begins[sequence] > 0:
            for member in range(at, at + members):
                for row in range(counts[groups[member]]):
                    item_rows[placed] = firsts[groups[member]] + row
                    placed += 1
        while place < placed:
            rows = min(tile_rows, placed - place)
            for low in range(0, tokens, split):
                made[number, _FIRST], made[number, _ROWS] = place, rows
                made[number, _SEQUENCE], made[number, _PARTIAL] = sequence, 1
                made[number, _BEGIN], made[number, _END] = low, min(tokens, low + split)
                number += 1
            place += rows
        at += members
    return number, placed


@_inner
def _cascades(begins, groups, counts, starts, tile_rows, split, slots, window):
    """`begins` for the groups that there is memory for; how many slots they take. A row takes slots for all splits that
    the tile sees which computes its own part."""
    at = taken = 0
    while at < len(groups):
        tokens, members = groups[at], groups[at + 1]
        at += 2
        wanted = 0
        for member in range(at, at + members):
            s = groups[member]
            assert tokens <= starts[s]
            for row in range(0, counts[s], tile_rows):
                rows = min(tile_rows, counts[s] - row)
                wanted += rows * -(-(starts[s] + row + rows) // split)
        if window == 0 and tokens >= split and taken + wanted <= slots:
            for member in range(at, at + members):
                begins[groups[member]] = tokens
            taken += wanted
        at += members
    return taken


@_inner
def _tiles(firsts, counts, starts, begins, tile_rows, window):
    """The longest first."""
    number = 0
    for s in range(len(counts)):
        number += -(-counts[s] // tile_rows)
    made, tile = np.zeros((number, _COLUMNS), np.int64), 0
    for s in range(len(counts)):
        for row in range(0, counts[s], tile_rows):
            rows, begin = min(tile_rows, counts[s] - row), begins[s]
            if window:
                begin = max(0, starts[s] + row - window + 1)
            made[tile, _FIRST], made[tile, _ROWS], made[tile, _SEQUENCE] = firsts[s] + row, rows, s
            made[tile, _BEGIN], made[tile, _END] = begin, starts[s] + row + rows
            tile += 1
    order = _longest_first(made)
    tiles = np.empty((number, _COLUMNS), np.int64)
    for tile in range(number):
        for column in range(_COLUMNS):
            tiles[tile, column] = made[order[tile], column]
    return tiles


@_inner
def _split(tiles, begins, group, kv_heads, split, programs, slots):
    """Which tiles are computed split by split: those whose first part is shared, and long ones where programs would
    wait for them. Slots go to the longest, where they save most. Returns how many splits an item takes, chosen so that
    there are about two items for each program."""
    total = 0
    for tile in range(len(tiles)):
        total += tiles[tile, _END] - tiles[tile, _BEGIN]
    share = total * kv_heads / programs
    uneven = _longest_program(tiles, kv_heads, programs) > UNEVEN * share
    needed = 0
    for tile in range(len(tiles)):
        rows, begin, end = tiles[tile, _ROWS], tiles[tile, _BEGIN], tiles[tile, _END]
        limit = share / 4 if rows * group <= FEW_ROWS else share
        splits = (end - 1) // split - begin // split + 1
        partial = begins[tiles[tile, _SEQUENCE]] > 0
        if uneven and not partial and end - begin > limit and splits > 1:
            needed += rows * splits
            partial = needed <= slots
        tiles[tile, _PARTIAL] = partial
    return max(1, int(share / (2 * split) + 0.5))


@_inner
def _longest_program(tiles, kv_heads, programs):
    """Positions that the busiest program takes if nothing is split: programs go over the list forth and back."""
    todo = np.zeros(programs, np.int64)
    for index in range(len(tiles) * kv_heads):
        turn, program = index // programs, index % programs
        if turn % 2:
            program = programs - 1 - program
        tile = index // kv_heads
        todo[program] += tiles[tile, _END] - tiles[tile, _BEGIN]
    longest = 0
    for program in range(programs):
        longest = max(longest, todo[program])
    return longest


@_inner
def _slots(row_slots, joins, tiles, begins, split, together):
    """Slots for the rows of split tiles, one behind the other, and their joins; the number of slots."""
    row_slots[:] = 0
    joins[:] = 0
    slot = 0
    for tile in range(len(tiles)):
        if tiles[tile, _PARTIAL]:
            # A shared first part has its slots before the row's own.
            before = 0 if begins[tiles[tile, _SEQUENCE]] > 0 else tiles[tile, _BEGIN] // split
            each = -(-tiles[tile, _END] // split) - before
            shared = begins[tiles[tile, _SEQUENCE]] // split
            items = shared + -(-(each - shared) // together)
            for row in range(tiles[tile, _FIRST], tiles[tile, _FIRST] + tiles[tile, _ROWS]):
                row_slots[row] = slot - before
                joins[row, 0], joins[row, 1], joins[row, 2] = slot, each, items
                slot += each
    return slot


@_inner
def _longest_first(made):
    """The order of tiles or items; of the same length, the first one first."""
    keys = np.empty(len(made), np.int64)
    for i in range(len(made)):
        keys[i] = (made[i, _BEGIN] - made[i, _END]) << 32 | i
    keys.sort()
    for i in range(len(made)):
        keys[i] &= 0xFFFFFFFF
    return keys
