"""What plan.py computes, step by step in numpy: the reference for its compiled loops. Takes shared prefixes as pairs of
sequences and positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernels.paged_attention.plan import FEW_ROWS, ITEM, JOIN, UNEVEN, Plan, Sizes


@dataclass(slots=True)
class _Tiles:
    """Columns, one entry a tile: `rows` rows from `first_row` of a sequence see positions begin .. end - 1."""

    sequence: np.ndarray
    first_row: np.ndarray
    rows: np.ndarray
    begin: np.ndarray
    end: np.ndarray

    def splits(self, split: int) -> np.ndarray:
        return (self.end - 1) // split - self.begin // split + 1


def plan(
    sizes: Sizes,
    first_rows: Sequence[int],
    row_counts: Sequence[int],
    starts: Sequence[int],
    shared: Sequence[tuple[Sequence[int], int]] = (),
) -> Plan:
    firsts, counts, starts = (np.asarray(column, np.int64) for column in (first_rows, row_counts, starts))
    begins = np.zeros(len(starts), np.int64)
    cascades, slots = _cascades(sizes, counts, starts, shared, begins)
    tiles = _tiles(sizes, firsts, counts, starts, begins)
    taken = begins[tiles.sequence] > 0
    partial = _split(sizes, tiles, taken, sizes.slots - slots)
    share = (tiles.end - tiles.begin).sum() * sizes.kv_heads / sizes.programs
    together = max(1, int(share / (2 * sizes.split) + 0.5))
    row_slots = np.zeros(int((firsts + counts).max(initial=0)), np.int32)
    joins = np.zeros((len(row_slots), JOIN), np.int32)
    _slots(sizes, tiles, partial, begins, row_slots, joins, together)
    placed = tiles.rows.cumsum() - tiles.rows
    items = [_items(sizes, tiles, placed, partial, together)]
    item_rows = [_counted(tiles.first_row, tiles.rows)]
    for sequences, tokens in cascades:
        rows = _counted(firsts[sequences], counts[sequences])
        at = np.arange(0, len(rows), sizes.tile_rows)
        number = np.minimum(sizes.tile_rows, len(rows) - at)
        place = at + sum(map(len, item_rows))
        same = np.full(len(at), tokens)
        shared_tiles = _Tiles(np.full(len(at), sequences[0]), at, number, np.zeros_like(at), same)
        items.append(_items(sizes, shared_tiles, place, np.ones(len(at), bool), 1))
        item_rows.append(rows)
    every = np.concatenate(items)
    every = every[np.argsort(every[:, 3] - every[:, 4], kind="stable")]
    return Plan(every, np.concatenate(item_rows).astype(np.int32), row_slots, joins)


def shared_prefixes(
    tables: np.ndarray, starts: Sequence[int], page_tokens: int, split: int
) -> list[tuple[list[int], int]]:
    """Sequences that begin with the same pages, and how many positions, in whole splits, they share. tables [S, width]:
    the pages of each sequence; only positions before its first row count."""
    if split % page_tokens:
        return []
    pages = split // page_tokens
    groups: dict[bytes, list[int]] = {}
    for sequence, start in enumerate(starts):
        if start >= split:
            groups.setdefault(tables[sequence, :pages].tobytes(), []).append(sequence)
    found = []
    for sequences in groups.values():
        if len(sequences) > 1:
            least = min(starts[sequence] for sequence in sequences) // split
            own = tables[sequences, : least * pages]
            same = (own == own[0]).all(axis=0)
            common = len(same) if same.all() else int(same.argmin())
            found.append((sequences, common // pages * split))
    return found


def _cascades(
    sizes: Sizes,
    counts: np.ndarray,
    starts: np.ndarray,
    shared: Sequence[tuple[Sequence[int], int]],
    begins: np.ndarray,
) -> tuple[list[tuple[Sequence[int], int]], int]:
    """Those of `shared` that there is memory for, and how many slots they take; `begins`: where a sequence's own
    part begins. A row takes slots for all splits that the tile sees which computes its own part."""
    kept, slots = [], 0
    for sequences, tokens in shared:
        wanted = 0
        for s in sequences:
            assert tokens <= starts[s]
            tile = np.arange(0, counts[s], sizes.tile_rows)
            rows = np.minimum(sizes.tile_rows, counts[s] - tile)
            wanted += int((rows * -(-(starts[s] + tile + rows) // sizes.split)).sum())
        if sizes.window == 0 and tokens >= sizes.split and slots + wanted <= sizes.slots:
            begins[list(sequences)] = tokens
            kept.append((list(sequences), tokens))
            slots += wanted
    return kept, slots


def _tiles(sizes: Sizes, firsts: np.ndarray, counts: np.ndarray, starts: np.ndarray, begins: np.ndarray) -> _Tiles:
    """The longest first."""
    number = -(-counts // sizes.tile_rows)
    sequence = np.repeat(np.arange(len(counts)), number)
    at = _counted(np.zeros_like(number), number) * sizes.tile_rows
    rows = np.minimum(sizes.tile_rows, counts[sequence] - at)
    end = starts[sequence] + at + rows
    begin = begins[sequence]
    if sizes.window:
        begin = np.maximum(0, starts[sequence] + at - sizes.window + 1)
    order = np.argsort(begin - end, kind="stable")
    return _Tiles(*(column[order] for column in (sequence, firsts[sequence] + at, rows, begin, end)))


def _split(sizes: Sizes, tiles: _Tiles, taken: np.ndarray, slots: int) -> np.ndarray:
    """Which tiles are computed split by split: those whose first part is shared, and long ones where programs would
    wait for them. Slots go to the longest, where they save most."""
    length = tiles.end - tiles.begin
    share = length.sum() * sizes.kv_heads / sizes.programs
    if _longest_program(sizes, length) <= UNEVEN * share:
        return taken
    limit = np.where(tiles.rows * sizes.group <= FEW_ROWS, share / 4, share)
    wanted = (length > limit) & (tiles.splits(sizes.split) > 1) & ~taken
    needed = np.where(wanted, tiles.rows * tiles.splits(sizes.split), 0)
    return taken | (wanted & (needed.cumsum() <= slots))


def _longest_program(sizes: Sizes, length: np.ndarray) -> int:
    """Positions that the busiest program takes if nothing is split: programs go over the list forth and back."""
    todo = np.repeat(length, sizes.kv_heads)
    turns = np.zeros((-(-len(todo) // sizes.programs), sizes.programs), np.int64)
    turns.reshape(-1)[: len(todo)] = todo
    turns[1::2] = turns[1::2, ::-1]
    return int(turns.sum(axis=0).max(initial=0))


def _slots(
    sizes: Sizes,
    tiles: _Tiles,
    partial: np.ndarray,
    begins: np.ndarray,
    row_slots: np.ndarray,
    joins: np.ndarray,
    together: int,
) -> None:
    """Slots for the rows of split tiles, one behind the other, and their joins."""
    rows = _counted(tiles.first_row[partial], tiles.rows[partial])
    # A shared first part has its slots before the row's own.
    before = tiles.begin // sizes.split * (begins[tiles.sequence] == 0)
    each = np.repeat((-(-tiles.end // sizes.split) - before)[partial], tiles.rows[partial])
    first = each.cumsum() - each
    row_slots[rows] = first - np.repeat(before[partial], tiles.rows[partial])
    shared = np.repeat((begins[tiles.sequence] // sizes.split)[partial], tiles.rows[partial])
    joins[rows] = np.stack([first, each, shared + -(-(each - shared) // together)], axis=1)


def _items(sizes: Sizes, tiles: _Tiles, placed: np.ndarray, partial: np.ndarray, together: int) -> np.ndarray:
    """A whole tile is one item; of others, each `together` splits are one."""
    number = np.where(partial, -(-tiles.splits(sizes.split) // together), 1)
    tile = np.repeat(np.arange(len(number)), number)
    split = tiles.begin[tile] // sizes.split + together * _counted(np.zeros_like(number), number)
    items = np.zeros((len(tile), ITEM), np.int32)
    items[:, 0], items[:, 1], items[:, 2] = placed[tile], tiles.rows[tile], tiles.sequence[tile]
    items[:, 3] = np.where(partial[tile], np.maximum(tiles.begin[tile], split * sizes.split), tiles.begin[tile])
    last = np.minimum(tiles.end[tile], (split + together) * sizes.split)
    items[:, 4] = np.where(partial[tile], last, tiles.end[tile])
    items[:, 5] = partial[tile]
    return items


def _counted(firsts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """firsts[0], firsts[0] + 1, .. counts[0] of them, then the same for the next."""
    before = counts.cumsum() - counts
    return np.arange(counts.sum()) + np.repeat(firsts - before, counts)
