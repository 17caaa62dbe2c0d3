"""What the kernels of a step read of its batch: one array of int32, filled on the host and sent with one copy, always
to the same address (kernels/device.py), so that a captured graph finds each step's inputs there.

    slots (int64) | tokens | positions | wanted | feature rows | of trees: also, forks | with states: what of each
    sequence is run | for each kind of attention: its plan | tables

Padding: rows after the batch's own are token 0 at position 0, stored nowhere (slot -1), in no plan and of no sequence.
No models here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kernels.cpu_program import compiled
from kernels.delta_rule.table import COLUMNS
from kernels.device import Device, starts_of
from kernels.paged_attention.plan import ITEM, JOIN, Plan, Sizes, shared_prefixes, write_plan
from models.batch import Batch
from models.states import States

_NONE = np.zeros(0, np.int32)
_NOTHING = Batch(_NONE, _NONE, _NONE, _NONE, 1, _NONE, _NONE, _NONE)


@dataclass(slots=True)
class PlanOnDevice:
    """The fields of kernels/paged_attention/work.py's Work, in our array."""

    counts: torch.Tensor
    items: torch.Tensor
    item_rows: torch.Tensor
    row_slots: torch.Tensor
    joins: torch.Tensor
    slots: int


@dataclass(slots=True)
class Step:
    """What layers read. All on the device; `rows` with padding."""

    rows: int
    slots: torch.Tensor  # [rows] int64
    tokens: torch.Tensor  # [rows] int32
    positions: torch.Tensor
    last: torch.Tensor  # [rows] int32: the last position that a row sees
    wanted: torch.Tensor  # [W] int32
    feature_rows: torch.Tensor  # [rows] int32
    # Second slots of rows: begins [rows + 1] int32, slots int64 (kernels/kv_store). None: there is room for none.
    also: tuple[torch.Tensor, torch.Tensor] | None
    # Pages to copy before anything is stored: sources, targets [F] int64.
    forks: tuple[torch.Tensor, torch.Tensor]
    tables: torch.Tensor  # [S, width] int32
    # [S, COLUMNS] int32 (kernels/delta_rule/table.py). None: the network has no states.
    states: torch.Tensor | None
    plans: tuple[PlanOnDevice, ...]


class StepInputs:
    """For batches of at most `rows` rows, whose trees have at most `branch_pages` pages of their own. `kinds`: the
    sizes that plans keep to. `fixed`: tables are kept [rows, width_limit] for graphs; else as wide as each batch's.
    `states`: those of the network, which follow each batch that is put."""

    def __init__(
        self,
        rows: int,
        kinds: Sequence[Sizes],
        page_tokens: int,
        width_limit: int,
        fixed: bool,
        device: Device,
        branch_pages: int = 0,
        blocks: bool = False,
        states: States | None = None,
    ) -> None:
        self._kinds, self._page_tokens, self._states = kinds, page_tokens, states
        self._branch_pages = branch_pages
        sizes = {"slots": 2 * rows, "tokens": rows, "positions": rows, "wanted": rows, "feature_rows": rows}
        # What a branch follows is stored in its first page once more, and that page holds at least one row of its own.
        # Without blocks they are the positions.
        sizes |= {"last": rows} if blocks else {}
        sizes |= {"also_begins": rows + 1, "also_slots": 2 * branch_pages * page_tokens, "forks": 4 * branch_pages}
        sizes |= {"states": rows * COLUMNS} if states is not None else {}
        for index, kind in enumerate(kinds):
            sizes[f"counts {index}"] = 1
            # A row is in its own tile, and in a shared one; a tile makes one item, or as many as it takes slots.
            sizes[f"items {index}"] = (rows + kind.slots) * ITEM
            sizes[f"item_rows {index}"] = 2 * rows
            sizes[f"row_slots {index}"] = rows
            sizes[f"joins {index}"] = rows * JOIN
        sizes["tables"] = rows * width_limit
        starts = starts_of(sizes.values())
        self._stage = device.stage(starts[-1])
        places = [slice(start, start + size) for start, size in zip(starts, sizes.values(), strict=False)]
        self._numbers = {name: self._stage.numbers[at] for name, at in zip(sizes, places, strict=True)}
        self._on_device = {name: self._stage.there[at] for name, at in zip(sizes, places, strict=True)}
        self._before_tables = starts[-2]
        self._tables = self._stage.there.new_zeros(rows, width_limit) if fixed else None
        # [2, branch pages]: sources, then targets.
        self._forks = self._on_device["forks"].view(torch.int64).view(2, branch_pages)
        self._no_forks = self._forks[0, :0], self._forks[1, :0]
        self._has_also = False
        self._plans = tuple(self._plan_there(index) for index in range(len(kinds)))
        self._plans_here = [self._plan_here(index) for index in range(len(kinds))]
        # Of each sequence of a batch: first row, rows, position of the first row.
        self._sequences = np.zeros((3, rows), np.int64)
        self._padding = dict.fromkeys(("tokens", "positions", "wanted"), np.zeros(rows, np.int32))
        self._padding["feature_rows"] = np.arange(rows, dtype=np.int32)
        # For fixed inputs, by rows: what `_views` gives.
        self._kept_views: dict[int, tuple[Any, ...]] = {}
        # Compile now, or load from disk, what puts plans.
        self._put_plans(_NOTHING)

    def _plan_there(self, index: int) -> PlanOnDevice:
        there = (self._on_device[f"{name} {index}"] for name in ("counts", "items", "item_rows", "row_slots", "joins"))
        return PlanOnDevice(*there, slots=self._kinds[index].slots)

    def _plan_here(self, index: int) -> Plan:
        here = {name: self._numbers[f"{name} {index}"] for name in ("items", "item_rows", "row_slots", "joins")}
        here["items"], here["joins"] = here["items"].reshape(-1, ITEM), here["joins"].reshape(-1, JOIN)
        return Plan(**here)

    def put(self, batch: Batch, rows: int) -> Step:
        """Send a batch, padded to `rows`. Waits only until the last batch has been sent."""
        self._stage.wait()
        own, wanted = len(batch.tokens), len(batch.wanted)
        for name, padding in self._padding.items():
            numbers, values = self._numbers[name], getattr(batch, name)
            numbers[: len(values)] = values
            numbers[len(values) : rows] = padding[len(values) : rows]
        if "last" in self._numbers:
            self._numbers["last"][:own], self._numbers["last"][own:rows] = _last(batch), 0
        slots = self._numbers["slots"].view(np.int64)
        slots[:own], slots[own:rows] = batch.slots, -1
        self._put_branches(batch, rows)
        self._put_states(batch, rows)
        self._put_plans(batch)
        count = len(batch.tables)
        self._numbers["tables"][:count] = batch.tables
        self._stage.send(self._before_tables + count)
        sequences, forks = count // batch.table_width, len(batch.forks) // 2
        tables = self._on_device["tables"][:count].view(sequences, batch.table_width)
        if self._tables is None:
            return self._step(rows, wanted, tables, forks, sequences)
        self._tables[:sequences, : batch.table_width].copy_(tables)
        return self._step(rows, rows, self._tables, forks, rows)

    def fixed_step(self, rows: int) -> Step:
        """The inputs of a graph captured for `rows` rows: the same tensors for every batch."""
        assert self._tables is not None
        return self._step(rows, rows, self._tables, 0, rows)

    def empty(self, rows: int) -> None:
        """A batch of padding only."""
        self.put(_NOTHING, rows)

    def _put_branches(self, batch: Batch, rows: int) -> None:
        if len(batch.also_rows):
            order = np.argsort(batch.also_rows, kind="stable")
            begins = np.searchsorted(batch.also_rows[order], np.arange(rows + 1))
            self._numbers["also_begins"][: rows + 1] = begins
            self._numbers["also_slots"].view(np.int64)[: len(order)] = batch.also_slots[order]
            self._has_also = True
        elif self._has_also:
            self._numbers["also_begins"][:] = 0
            self._has_also = False
        if len(batch.forks):
            forks = self._numbers["forks"].view(np.int64).reshape(2, self._branch_pages)
            forks[:, : len(batch.forks) // 2] = batch.forks.reshape(-1, 2).T

    def _put_states(self, batch: Batch, rows: int) -> None:
        """Filled up with sequences of no rows."""
        if self._states is not None:
            numbers, words = self._numbers["states"], self._states.follow(batch).reshape(-1)
            numbers[: len(words)], numbers[len(words) : rows * COLUMNS] = words, 0

    def _put_plans(self, batch: Batch) -> None:
        count = _sequences(batch.tiles, _last(batch), self._sequences)
        firsts, counts, starts = self._sequences[:, :count]
        tables = batch.tables.reshape(-1, batch.table_width)
        shared: dict[int, np.ndarray] = {}
        for index, (kind, here) in enumerate(zip(self._kinds, self._plans_here, strict=True)):
            if kind.split not in shared:
                shared[kind.split] = shared_prefixes(tables, starts, self._page_tokens, kind.split)
            items, _ = write_plan(here, kind, firsts, counts, starts, shared[kind.split])
            self._numbers[f"counts {index}"][:] = items

    def _step(self, rows: int, wanted: int, tables: torch.Tensor, forks: int, sequences: int) -> Step:
        views = self._kept_views.get(rows)
        if views is None:
            views = self._views(rows, wanted)
            if self._tables is not None:
                self._kept_views[rows] = views
        pairs = (self._forks[0, :forks], self._forks[1, :forks]) if forks else self._no_forks
        states = None
        if self._states is not None:
            states = self._on_device["states"][: sequences * COLUMNS].view(sequences, COLUMNS)
        return Step(rows, *views, forks=pairs, tables=tables, states=states, plans=self._plans)

    def _views(self, rows: int, wanted: int) -> tuple[Any, ...]:
        """The first fields of a step, after its rows."""
        there = self._on_device
        also = (there["also_begins"][: rows + 1], there["also_slots"].view(torch.int64))
        return (
            there["slots"].view(torch.int64)[:rows],
            there["tokens"][:rows],
            there["positions"][:rows],
            there.get("last", there["positions"])[:rows],
            there["wanted"][:wanted],
            there["feature_rows"][:rows],
            also if self._branch_pages else None,
        )


def _last(batch: Batch) -> np.ndarray:
    """By row, the last position that it sees."""
    return batch.seen - 1 if len(batch.seen) else batch.positions


@compiled
def _sequences(tiles, positions, found):
    """Of each sequence of a batch's tiles: first row, rows, position of the first row. Their number."""
    number = 0
    for tile in range(0, len(tiles), 3):
        sequence, first, rows = tiles[tile], tiles[tile + 1], tiles[tile + 2]
        if tile == 0 or sequence != tiles[tile - 3]:
            found[0, number], found[1, number], found[2, number] = first, 0, positions[first]
            number += 1
        found[1, number - 1] += rows
    return number
