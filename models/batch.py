"""The rows of one forward pass, as flat arrays. Knows nothing of requests."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np

from kernels.cpu_program import compiled
from models.branches import Branch, branches_of

Pages = Sequence[int] | np.ndarray
# Rows of a sequence that attention computes together: they share the conversion of a page.
TILE_ROWS = 16


@dataclass(slots=True)
class Stretch:
    """Consecutive tokens of one sequence at positions start.. ; `pages` covers them and all before.

    With `parents` the first token is followed by a tree of draft tokens: parents[i] is the index, among the draft
    tokens, of the one that tokens[i + 1] follows, -1 for the first token. `spare` are pages for its branches
    (models/branches.py); what they hold is not needed before or after the step. Pages in an array of int32 are taken as
    they are; others cost time for each page. Rows of a `block` see all of it, those behind them too.

    With `states_only` these rows have no logits: only what the head would read is wanted.

    Of a network with states (Network.recurrent), `state` says which is the sequence's, and rows from position `settled`
    on may be taken back (-1: none): the next stretch of the sequence begins where what is kept of this one ends."""

    tokens: Sequence[int]
    start: int
    pages: Pages
    logits_from: int  # logits are wanted for tokens logits_from..
    parents: Sequence[int] = ()
    spare: Sequence[int] = ()
    block: bool = False
    state: int = 0
    settled: int = -1
    states_only: bool = False


_BUFFERS = (array, np.ndarray)
_NO_PAIRS = np.empty(0, np.int32)
_NO_SLOTS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one sequence are adjacent, in the order of their positions. A branch of a tree is a sequence."""

    tokens: np.ndarray  # [R] int32
    positions: np.ndarray  # [R] int32
    slots: np.ndarray  # [R] int64: page · page_tokens + offset of the row's key and value
    tables: np.ndarray  # [S · table_width] int32: pages of each sequence
    table_width: int
    tiles: np.ndarray  # [T · 3] int32: sequence, first row, rows
    tile_work: np.ndarray  # [T] int64: pages looked at by the rows of a tile
    # Rows whose logits are returned, then those of which only what the head would read is (`states_only`).
    wanted: np.ndarray  # [W] int64
    # Pages to copy before anything is stored: from, to.
    forks: np.ndarray = field(default_factory=lambda: _NO_PAIRS)  # [F · 2] int32
    # Rows whose key and value are also stored in a second slot.
    also_rows: np.ndarray = field(default_factory=lambda: _NO_PAIRS)  # [A] int32
    also_slots: np.ndarray = field(default_factory=lambda: _NO_SLOTS)  # [A] int64
    # Where the features of each row go: its place among the tokens of the stretches.
    feature_rows: np.ndarray = field(default_factory=lambda: _NO_PAIRS)  # [R] int32
    # How many positions each row sees; empty: all up to its own. Each row of a block is a sequence with the same pages.
    seen: np.ndarray = field(default_factory=lambda: _NO_PAIRS)  # [R] int32
    # Of each sequence its state, and the position up to which it is settled.
    states: np.ndarray = field(default_factory=lambda: _NO_PAIRS)  # [S · 2] int32
    # How many of the last wanted rows have no logits.
    states_only: int = 0

    @property
    def with_logits(self) -> int:
        return len(self.wanted) - self.states_only


class Bounds(NamedTuple):
    """What a network has: ids of tokens, positions, and pages with those of branches."""

    tokens: int
    positions: int
    pages: int

    def check(self, batch: Batch) -> None:
        """Loops and kernels read and write where the arrays say."""
        for name, values, end in (("tokens", batch.tokens, self.tokens), ("positions", batch.positions, self.positions),
                                  ("pages", batch.tables, self.pages)):  # fmt: skip
            assert values.min() >= 0 and values.max() < end, f"{name} out of bounds"


def make_batch(stretches: Sequence[Stretch], page_tokens: int) -> Batch:
    tokens = [each.tokens for each in stretches]
    made = _Sequences(page_tokens, sum(map(len, tokens)))
    if any(each.parents or each.block for each in stretches):
        for stretch in stretches:
            made.add_any(stretch)
    else:
        made.add_chains(stretches)
    return made.batch(tokens, max([len(each.pages) for each in stretches]))


def tree_slots(stretch: Stretch, page_tokens: int) -> np.ndarray:
    """int64, by row: where the batch puts its key and value."""
    slots = np.empty(len(stretch.tokens), np.int64)
    for branch, table in _tables(stretch, page_tokens):
        first = stretch.start + branch.depth
        at = np.arange(first, first + len(branch.rows))
        slots[branch.rows] = table[at // page_tokens].astype(np.int64) * page_tokens + at % page_tokens
    return slots


class _Sequences:
    """What stretches become: a chain is one sequence, a tree one for each branch."""

    def __init__(self, page_tokens: int, rows: int) -> None:
        self._page_tokens = page_tokens
        # Of each sequence.
        self._starts: list[int] = []
        self._counts: list[int] = []
        self._pages: list[Pages] = []
        self._states: list[int] = []
        # Of each token of the stretches: its row, and whether its logits are wanted.
        self._row_of = np.arange(rows)
        self._wanted = np.ones(rows, bool)
        # Of those that have no logits; None: of none, as in most steps.
        self._states_only: np.ndarray | None = None
        self._rows = 0
        self._forks: list[int] = []
        self._also_rows: list[int] = []
        self._also_slots: list[int] = []
        self._seen: list[int] = []

    def add_chains(self, stretches: Sequence[Stretch]) -> None:
        """All of a batch: most steps have nothing else."""
        self._counts = counts = [len(each.tokens) for each in stretches]
        self._starts = [each.start for each in stretches]
        self._pages = [each.pages if isinstance(each.pages, _BUFFERS) else array("i", each.pages) for each in stretches]
        for each, count in zip(stretches, counts, strict=True):
            self._states += (each.state, each.start + count if each.settled < 0 else each.settled)
            self._mark_wanted(each)
            self._rows += count

    def add_any(self, stretch: Stretch) -> None:
        self._mark_wanted(stretch)
        if stretch.parents:
            self.add_tree(stretch)
        elif stretch.block:
            self.add_block(stretch)
        else:
            self.add(stretch, stretch.start, len(stretch.tokens), stretch.pages)

    def _mark_wanted(self, stretch: Stretch) -> None:
        """Of the stretch that is added next."""
        if stretch.states_only:
            if self._states_only is None:
                self._states_only = np.zeros(len(self._wanted), bool)
            self._states_only[self._rows : self._rows + len(stretch.tokens)] = True
        if count := stretch.logits_from:
            assert count <= len(stretch.tokens)
            self._wanted[self._rows : self._rows + count] = False

    def add(self, stretch: Stretch, start: int, count: int, pages: Pages) -> None:
        self._states += (stretch.state, start + count if stretch.settled < 0 else stretch.settled)
        self._starts.append(start)
        self._counts.append(count)
        self._pages.append(pages if isinstance(pages, _BUFFERS) else array("i", pages))
        self._rows += count

    def add_block(self, stretch: Stretch) -> None:
        """A batch has blocks alone, or none."""
        assert len(self._seen) == self._rows
        end = stretch.start + len(stretch.tokens)
        for position in range(stretch.start, end):
            self.add(stretch, position, 1, stretch.pages)
            self._seen.append(end)

    def add_tree(self, stretch: Stretch) -> None:
        """Its rows by branches; logits and features come in the order of its tokens."""
        row_of = self._row_of[self._rows : self._rows + len(stretch.tokens)]
        for branch, table in _tables(stretch, self._page_tokens):
            row_of[branch.rows] = np.arange(self._rows, self._rows + len(branch.rows))
            if branch.parent >= 0:
                self._fork(stretch, branch, table, row_of)
            self.add(stretch, stretch.start + branch.depth, len(branch.rows), table)

    def _fork(self, stretch: Stretch, branch: Branch, table: np.ndarray, row_of: np.ndarray) -> None:
        """Fill a branch's first page up to the branch: the end of the text, and the draft tokens it follows."""
        first = stretch.start + branch.depth
        page = first // self._page_tokens
        begins = page * self._page_tokens
        if begins < stretch.start:
            self._forks += [int(stretch.pages[page]), int(table[page])]
        row = branch.rows[0]
        for position in range(first - 1, max(begins, stretch.start) - 1, -1):
            row = stretch.parents[row - 1] + 1
            self._also_rows.append(int(row_of[row]))
            self._also_slots.append(int(table[page]) * self._page_tokens + position - begins)

    def batch(self, tokens: Sequence[Sequence[int]], width: int) -> Batch:
        """`tokens` of each stretch; page tables have `width` columns."""
        rows, sequences = self._rows, len(self._starts)
        lengths = [len(pages) for pages in self._pages]
        columns = np.fromiter(chain(self._starts, self._counts, lengths), np.int64, 3 * sequences)
        pages = np.frombuffer(b"".join(self._pages), np.int32)
        positions, slots = np.empty(rows, np.int32), np.empty(rows, np.int64)
        tables = np.empty((sequences, width), np.int32)
        tiles = np.empty((sum([-(-count // TILE_ROWS) for count in self._counts]), 3), np.int32)
        work = np.empty(len(tiles), np.int64)
        _fill(columns.reshape(3, -1), pages, self._page_tokens, positions, slots, tables, tiles, work)
        by_row, feature_rows = np.empty(rows, np.int32), np.empty(rows, np.int32)
        wanted, alone = self._row_of[self._wanted], 0
        if self._states_only is not None:
            only = self._states_only[self._wanted]
            wanted, alone = np.concatenate([wanted[~only], wanted[only]]), int(only.sum())
        by_row[self._row_of] = np.fromiter(chain.from_iterable(tokens), np.int32, rows)
        feature_rows[self._row_of] = np.arange(rows)
        return Batch(
            tokens=by_row,
            positions=positions,
            slots=slots,
            tables=tables.reshape(-1),
            table_width=width,
            tiles=tiles.reshape(-1),
            tile_work=work,
            wanted=wanted,
            forks=np.array(self._forks, np.int32),
            also_rows=np.array(self._also_rows, np.int32),
            also_slots=np.array(self._also_slots, np.int64),
            feature_rows=feature_rows,
            seen=np.array(self._seen, np.int32),
            states=np.array(self._states, np.int32),
            states_only=alone,
        )


@compiled
def _fill(columns, pages, page_tokens, positions, slots, tables, tiles, work):
    """`columns`: of each sequence its first position, its rows, and how many of `pages` are its."""
    row = tile = page = 0
    for s in range(columns.shape[1]):
        start, count, length = columns[0, s], columns[1, s], columns[2, s]
        assert count > 0 and start + count <= length * page_tokens, "pages for every row"
        for i in range(tables.shape[1]):
            tables[s, i] = pages[page + i] if i < length else 0
        for i in range(count):
            if i % TILE_ROWS == 0:
                rows = min(TILE_ROWS, count - i)
                tiles[tile, 0], tiles[tile, 1], tiles[tile, 2] = s, row, rows
                work[tile] = rows * ((start + i) // page_tokens + 1)
                tile += 1
            at = start + i
            positions[row] = at
            slots[row] = np.int64(tables[s, at // page_tokens]) * page_tokens + at % page_tokens
            row += 1
        page += length


def _tables(stretch: Stretch, page_tokens: int) -> Iterator[tuple[Branch, np.ndarray]]:
    """Each branch with its pages."""
    main = np.asarray(stretch.pages, np.int32)
    tables: list[np.ndarray] = []
    spare = 0
    for branch in branches_of(stretch.parents):
        table = main
        own = branch.pages(stretch.start, page_tokens)
        if own:
            table = tables[branch.parent].copy()
            assert spare + len(own) <= len(stretch.spare), "pages for every branch"
            table[own.start : own.stop] = stretch.spare[spare : spare + len(own)]
            spare += len(own)
        tables.append(table)
        yield branch, table
