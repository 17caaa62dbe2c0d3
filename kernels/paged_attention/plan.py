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
    │ 1 row at 9000  │ →  │ 0    │ →  │ split 1 │ → partial ├ → joined by a second kernel
    └────────────────┘    └──────┘    └ …       ┘ → partial ┘

    rows of many sequences whose first splits lie in the same pages: tiles of any 16 of these rows take a shared split
    at once (cascade); what is each one's own follows as above.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

# Numbers of an item: first place in `item_rows`, rows, sequence, first position, end position, partial.
ITEM = 8
# Numbers of a join: row, first slot, slots.
JOIN = 4
# A tile with no more rows of a matrix than this writes little when it is split.
FEW_ROWS = 16


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
    # Rows may be those of trees, whose positions go back to where their sequence's rows begin.
    trees: bool = False


@dataclass(slots=True)
class Plan:
    items: np.ndarray  # [I, ITEM] int32, longest first
    item_rows: np.ndarray  # int32: the rows of all items
    row_slots: np.ndarray  # [R] int32: split s of a row has slot row_slots[row] + s
    joins: np.ndarray  # [J, JOIN] int32


@dataclass(slots=True)
class _Draft:
    """Items as they are found."""

    sizes: Sizes
    items: list[tuple[int, ...]] = field(default_factory=list)
    item_rows: list[np.ndarray] = field(default_factory=list)
    placed: int = 0
    slots: int = 0
    joins: list[tuple[int, int, int]] = field(default_factory=list)

    def add(self, first: int, rows: int, sequence: int, spans: list[tuple[int, int]], partial: bool) -> None:
        self.items.extend((first, rows, sequence, begin, end, int(partial), 0, 0) for begin, end in spans)

    def place(self, rows: np.ndarray) -> int:
        self.item_rows.append(rows)
        self.placed += len(rows)
        return self.placed - len(rows)


def plan(
    sizes: Sizes,
    first_rows: Sequence[int],
    row_counts: Sequence[int],
    starts: Sequence[int],
    shared: Sequence[tuple[Sequence[int], int]] = (),
) -> Plan:
    """Sequence s has rows first_rows[s] .. + row_counts[s], which stand at starts[s] .. of its context. `shared`:
    sequences whose first positions, so many, lie in the same pages (`shared_prefixes` finds them)."""
    draft = _Draft(sizes)
    rows = max((first + count for first, count in zip(first_rows, row_counts, strict=True)), default=0)
    row_slots = np.zeros(rows, np.int32)
    begins = _cascade(draft, first_rows, row_counts, starts, shared, row_slots)
    tiles = list(_tiles(sizes, first_rows, row_counts, starts, begins))
    work = sum(end - begin for _, _, _, begin, end in tiles) + sum(item[4] - item[3] for item in draft.items)
    share = max(1, work * sizes.kv_heads // sizes.programs)
    # The longest first: slots go where they save most.
    for sequence, first, count, begin, end in sorted(tiles, key=lambda tile: tile[3] - tile[4]):
        placed = draft.place(np.arange(first, first + count, dtype=np.int32))
        spans = list(_spans(begin, end, sizes.split))
        if sequence in begins:
            draft.add(placed, count, sequence, spans, partial=True)
            continue
        limit = share // 2 if count * sizes.group <= FEW_ROWS else share
        wanted = count * len(spans)
        if len(spans) > 1 and end - begin > limit and draft.slots + wanted <= sizes.slots:
            own = np.arange(count, dtype=np.int32) * len(spans) + draft.slots
            row_slots[first : first + count] = own - begin // sizes.split
            draft.joins += [(first + i, int(slot), len(spans)) for i, slot in enumerate(own)]
            draft.slots += wanted
            draft.add(placed, count, sequence, spans, partial=True)
        else:
            draft.add(placed, count, sequence, [(begin, end)], partial=False)
    return _finished(draft, row_slots)


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


def _cascade(
    draft: _Draft,
    first_rows: Sequence[int],
    row_counts: Sequence[int],
    starts: Sequence[int],
    shared: Sequence[tuple[Sequence[int], int]],
    row_slots: np.ndarray,
) -> dict[int, int]:
    """Items for shared splits; where what is each sequence's own begins, for those that take part."""
    sizes, begins = draft.sizes, {}
    for sequences, tokens in shared:
        # A row gets slots for as many splits as the tile that will compute what is its own.
        splits = {s: _splits_of_rows(sizes, row_counts[s], starts[s]) for s in sequences}
        wanted = sum(sum(counts) for counts in splits.values())
        if sizes.window or tokens < sizes.split or draft.slots + wanted > sizes.slots:
            continue
        for s in sequences:
            assert tokens <= starts[s]
            begins[s] = tokens
            for row, count in enumerate(splits[s], first_rows[s]):
                row_slots[row] = draft.slots
                draft.joins.append((row, draft.slots, count))
                draft.slots += count
        rows = np.concatenate([np.arange(first_rows[s], first_rows[s] + row_counts[s]) for s in sequences])
        for at in range(0, len(rows), sizes.tile_rows):
            tile = rows[at : at + sizes.tile_rows].astype(np.int32)
            spans = list(_spans(0, tokens, sizes.split))
            draft.add(draft.place(tile), len(tile), sequences[0], spans, partial=True)
    return begins


def _splits_of_rows(sizes: Sizes, count: int, start: int) -> list[int]:
    ends = (start + min(count, (row // sizes.tile_rows + 1) * sizes.tile_rows) for row in range(count))
    return [-(-end // sizes.split) for end in ends]


def _tiles(
    sizes: Sizes, first_rows: Sequence[int], row_counts: Sequence[int], starts: Sequence[int], begins: dict[int, int]
) -> Iterator[tuple[int, int, int, int, int]]:
    """(sequence, first row, rows, first position seen, end)."""
    for s, (first, count, start) in enumerate(zip(first_rows, row_counts, starts, strict=True)):
        for at in range(0, count, sizes.tile_rows):
            rows = min(sizes.tile_rows, count - at)
            lowest = start if sizes.trees else start + at
            begin = max(0, lowest - sizes.window + 1) if sizes.window else begins.get(s, 0)
            yield s, first + at, rows, begin, start + at + rows


def _spans(begin: int, end: int, split: int) -> Iterator[tuple[int, int]]:
    """The range begin..end cut at multiples of `split`."""
    while begin < end:
        cut = min(end, (begin // split + 1) * split)
        yield begin, cut
        begin = cut


def _finished(draft: _Draft, row_slots: np.ndarray) -> Plan:
    items = np.asarray(draft.items, np.int32).reshape(-1, ITEM)
    items = items[np.argsort(items[:, 3] - items[:, 4], kind="stable")]
    joins = np.zeros((len(draft.joins), JOIN), np.int32)
    if draft.joins:
        joins[:, :3] = draft.joins
    item_rows = np.concatenate(draft.item_rows) if draft.item_rows else np.zeros(0, np.int32)
    return Plan(items, item_rows, row_slots, joins)
