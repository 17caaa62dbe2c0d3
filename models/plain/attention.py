"""Grouped-query attention over pages, sequence by sequence. Knows nothing of the rest of the layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from kernels.kv_store.reference import as_kept, from_kept
from models.batch import Batch
from models.executor import Options, PageTensor
from models.plain.parts import PlainLinear, PlainNorm, kept_dtype, rotated, shared_tables
from models.spec import Attention
from models.weights import Weights, sinks_of


class PlainAttention:
    """Owns the pages of one layer."""

    def __init__(self, spec: Attention, weights: Weights, options: Options, device: str) -> None:
        self._spec = spec
        self._qkv = PlainLinear(spec.qkv, weights, options, device)
        self._output = PlainLinear(spec.output, weights, options, device)
        self._q_norm = PlainNorm(spec.q_norm, weights, options, device) if spec.q_norm else None
        self._k_norm = PlainNorm(spec.k_norm, weights, options, device) if spec.k_norm else None
        sinks = sinks_of(spec, weights)
        self._sinks = None if sinks is None else sinks.to(device)[:, None, None]  # [heads, 1, 1]
        self._cos, self._sin = shared_tables(spec.rope, options.max_context, device)
        shape = (options.pages + options.branch_pages, options.page_tokens, spec.kv_heads, spec.head_dim)
        self._keys = torch.empty(shape, dtype=kept_dtype(options), device=device)
        self._values = torch.empty_like(self._keys)

    @staticmethod
    def page_bytes(spec: Attention, options: Options) -> int:
        return 2 * options.page_tokens * spec.kv_heads * spec.head_dim * kept_dtype(options).itemsize

    def copy_page(self, source: int, target: int) -> None:
        self._keys[target] = self._keys[source]
        self._values[target] = self._values[source]

    def copy_state(self, source: int, target: int) -> None: ...

    def page_memory(self) -> list[PageTensor]:
        return [PageTensor(each, 2, self._spec.all_kv_heads) for each in (self._keys, self._values)]

    def move(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        for cache in (self._keys.flatten(0, 1), self._values.flatten(0, 1)):
            cache[targets] = cache[sources]

    def __call__(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """x [R, hidden] -> [R, hidden]; keys and values of all rows go to their slots first."""
        q, gates = self.store(x, batch)
        last = torch.from_numpy(batch.seen - 1 if len(batch.seen) else batch.positions).to(x.device)
        attended = torch.empty_like(q)
        for rows, table in sequences(batch):
            pages = torch.from_numpy(table).to(x.device)
            attended[rows] = self._attend(q[rows], last[rows], pages)
        attended = attended.flatten(1)
        if self._spec.gated:
            attended = attended * gates.float().sigmoid()
        return self._output(attended.to(x.dtype))

    def store(self, x: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the rows, in their slots; the queries [R, heads, D], and what their gates are made of."""
        spec = self._spec
        at = torch.from_numpy(batch.positions).to(x.device)
        counts = spec.heads, spec.kv_heads, spec.kv_heads, spec.heads * spec.gated
        q, k, v, gates = self._qkv(x).split([count * spec.head_dim for count in counts], dim=-1)
        q, k, v = (each.unflatten(-1, (-1, spec.head_dim)) for each in (q, k, v))  # [R, heads, D]
        q, k = self._q_norm(q) if self._q_norm else q, self._k_norm(k) if self._k_norm else k
        q, k = (rotated(each, self._cos[at], self._sin[at], spec.rope) for each in (q, k))
        rows, slots = kept(batch, x.device)
        self._keys.flatten(0, 1)[slots] = as_kept(k[rows], self._keys.dtype)
        self._values.flatten(0, 1)[slots] = as_kept(v[rows], self._values.dtype)
        return q, gates

    def _attend(self, q: torch.Tensor, at: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        """q [R, heads, D] of one sequence, each over what its pages hold up to position `at`."""
        spec, length = self._spec, int(at[-1]) + 1
        group = spec.heads // spec.kv_heads
        keys, values = (
            from_kept(cache[pages].flatten(0, 1)[:length]).repeat_interleave(group, dim=1)  # [L, heads, D]
            for cache in (self._keys, self._values)
        )
        scores = torch.einsum("rhd,lhd->hrl", q, keys) * spec.scale
        distance = at[:, None] - torch.arange(length, device=q.device)
        hidden = distance < 0
        if spec.window:
            hidden |= distance >= spec.window
        scores = scores.masked_fill(hidden, float("-inf"))
        if self._sinks is not None:
            scores = torch.cat([scores, self._sinks.expand(-1, len(q), 1)], dim=-1)
        weights = scores.softmax(-1)[..., :length]
        return torch.einsum("hrl,lhd->rhd", weights, values)


def kept(batch: Batch, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and the slots they are kept in."""
    rows = np.concatenate([np.arange(len(batch.slots)), batch.also_rows])
    slots = np.concatenate([batch.slots, batch.also_slots])
    return torch.from_numpy(rows).to(device), torch.from_numpy(slots).to(device)


def sequences(batch: Batch) -> Iterator[tuple[slice, np.ndarray]]:
    """For each sequence of the batch: its rows, and the pages that reach to the last of them."""
    tiles = batch.tiles.reshape(-1, 3)
    tables = batch.tables.reshape(-1, batch.table_width)
    for sequence in range(len(tables)):
        own = tiles[tiles[:, 0] == sequence]
        yield slice(int(own[0, 1]), int(own[-1, 1] + own[-1, 2])), tables[sequence]
