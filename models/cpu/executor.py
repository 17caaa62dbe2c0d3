"""CpuExecutor: a network as a program of compiled loops. A step is one native call; Python only says which rows.

    fork,
    embed, then per layer:  norm  qkv  rotate+store  attend  merge  output(+)  norm  gate·up  down(+)
    then:                   norm of the wanted rows, head                     (+): added into the residual

and behind each layer that is a tap, a copy of the residual to the features.

The residual stream is float32; between ops rows are bfloat16 or float32; int8 is for the linears alone. Every op
gives a row the same bits whatever its batch, so `strict` costs nothing here and always holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kernels.cpu_program import (
    ALSO_COUNT,
    ALSO_ROWS,
    ALSO_SLOTS,
    FEATURE_ROWS,
    FORK_COUNT,
    FORKS,
    LOGITS_COUNT,
    POSITIONS,
    ROWS,
    SEEN,
    SLOTS,
    STATE_COUNT,
    STATES,
    TABLE_WIDTH,
    TABLES,
    TILE_COUNT,
    TILES,
    TOKENS,
    WANTED,
    WANTED_COUNT,
    Op,
    Program,
)
from kernels.kv_store.cpu import fork_op, layers_of, move
from kernels.linear import cpu as linears
from models.batch import Batch
from models.cpu.builder import ModelBuilder
from models.cpu.layers import build, page_bytes, page_shape, why_not
from models.cpu.memory import Buffer
from models.cpu.projection import CpuProjection
from models.executor import Options, Output, PageTensor
from models.group import Group
from models.parameters import parameter_count
from models.projection import Projection
from models.spec import Attention, Linear, Network
from models.states import States
from models.taps import check_taps
from models.weights import Weights

MAX_ROWS = 512


class CpuExecutor:
    """models/executor.py's Executor."""

    strict = True
    max_rows = MAX_ROWS
    branches = True

    def __init__(self, network: Network, weights: Weights, options: Options) -> None:
        check_taps(options.taps, len(network.layers))
        self.parameters = parameter_count(network)
        self.path = f"compiled loops ({linears.path(options.dtype, options.instructions)})"
        # Pages of one CPU are those of another where bits are the same.
        self.computed_by = "compiled loops, the same bits" if options.same_bits else self.path
        builder = ModelBuilder(network, weights, options, MAX_ROWS)
        built = build(builder)
        ops = [one for one in built if isinstance(one, Op)]
        linears.follow(ops)
        # Where other ranks' sums are waited for, counted in ops, and what is summed; the first op is put before all.
        sums = [(at, one) for at, one in enumerate(built) if isinstance(one, Buffer)]
        self._sums = [(at + 1 - number, one) for number, (at, one) in enumerate(sums)]
        self._group, self._vocab_size = options.group, network.vocab_size
        self._logits, self._features, self._pages = builder.logits, builder.features, builder.pages
        self._hidden, self._entered = builder.hidden, network.entry is not None
        # The norm before the head is the last to write here.
        self._final = builder.normed[0] if network.head.parts else None
        # Of each of the pages: keys, then values.
        self._attention = [one for one in network.paged for _ in range(2)]
        shapes = [page_shape(one, options) for one in network.paged]
        self._states = States(options.states, options.longest_draft) if network.recurrent else None
        self._memories = builder.memories
        # What of each sequence delta nets run, as long as they do.
        self._table = np.empty(0, np.int32)
        self._layers = layers_of(shapes, [pages.data_ptr() for pages in builder.pages])
        ops.insert(0, fork_op(self._layers))
        # What `forward` runs ends here; the others are `store`'s.
        self._end = len(ops)
        ops += [] if network.context is None else builder.context(network.context)
        # All is packed: the files are let go.
        del builder.weights
        self._program = Program(ops, options.threads)
        self._batch: Batch | None = None

    @staticmethod
    def page_bytes(network: Network, options: Options) -> int:
        return page_bytes(network, options)

    @staticmethod
    def why_not(network: Network, dtype: str) -> str:
        return why_not(network, dtype)

    @staticmethod
    def projection(one: Linear, weights: Weights, options: Options, device: torch.device) -> Projection:
        return CpuProjection(one, weights, options)

    def forward(self, batch: Batch, hidden: torch.Tensor | None = None) -> Output:
        assert (hidden is not None) == self._entered
        rows, wanted = len(batch.tokens), len(batch.wanted)
        self._put(batch, hidden)
        logits = self._logits.view(batch.with_logits)
        if self._group is None:
            self._program.run(0, self._end)
        else:
            logits = self._run_with_others(self._group, rows, logits)
        features = None if self._features is None else self._features.view(rows)
        return Output(logits, features, None if self._final is None else self._final.view(wanted))

    def store(self, batch: Batch, hidden: torch.Tensor) -> None:
        self._put(batch, hidden)
        self._program.run(self._end)

    def _put(self, batch: Batch, hidden: torch.Tensor | None) -> None:
        rows, wanted = len(batch.tokens), len(batch.wanted)
        assert 1 <= rows <= self.max_rows
        if hidden is not None:
            assert self._hidden is not None
            self._hidden.view(rows).copy_(hidden)
        # The arrays must stay where they are until the run is over.
        self._batch = batch
        step = self._program.step
        step[ROWS], step[WANTED_COUNT], step[TILE_COUNT] = rows, wanted, len(batch.tile_work)
        step[LOGITS_COUNT], step[TABLE_WIDTH] = batch.with_logits, batch.table_width
        step[FORK_COUNT], step[ALSO_COUNT] = len(batch.forks) // 2, len(batch.also_rows)
        assert (self._features is None and hidden is None) or len(batch.feature_rows) == rows
        for word, array, dtype in (
            (TOKENS, batch.tokens, np.int32),
            (POSITIONS, batch.positions, np.int32),
            (SLOTS, batch.slots, np.int64),
            (TABLES, batch.tables, np.int32),
            (TILES, batch.tiles, np.int32),
            (WANTED, batch.wanted, np.int64),
            (FORKS, batch.forks, np.int32),
            (ALSO_ROWS, batch.also_rows, np.int32),
            (ALSO_SLOTS, batch.also_slots, np.int64),
            (FEATURE_ROWS, batch.feature_rows, np.int32),
        ):
            assert array.flags.c_contiguous and array.dtype == dtype
            step[word] = array.ctypes.data
        step[SEEN] = batch.seen.ctypes.data if len(batch.seen) else 0
        if self._states is not None:
            self._table = self._states.follow(batch)
            step[STATES], step[STATE_COUNT] = self._table.ctypes.data, len(self._table)

    def _run_with_others(self, group: Group, rows: int, logits: torch.Tensor) -> torch.Tensor:
        first = 0
        for at, buffer in self._sums:
            self._program.run(first, at)
            group.sum(buffer.view(rows))
            first = at
        self._program.run(first, self._end)
        return group.side_by_side(logits, self._vocab_size)

    def copy_page(self, source: int, target: int) -> None:
        for pages in self._pages:
            pages[target] = pages[source]

    def copy_state(self, source: int, target: int) -> None:
        assert self._states is not None
        self._states.copy(source, target)
        for memory in self._memories:
            memory.copy(source, target)

    def page_memory(self) -> Sequence[PageTensor]:
        return [
            # A head's words are one block.
            PageTensor(pages.view(len(pages), one.kv_heads, -1), 1, one.all_kv_heads)
            if isinstance(one, Attention) else PageTensor(pages)
            for one, pages in zip(self._attention, self._pages, strict=True)
        ]  # fmt: skip

    def move(self, slots: Sequence[tuple[int, int]]) -> None:
        move(self._layers, slots)

    def close(self) -> None:
        """End the threads. Nothing may run."""
        self._program.close()
