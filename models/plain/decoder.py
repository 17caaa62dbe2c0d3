"""PlainExecutor: a network, layer by layer, as its formulas are written.

Every kind of attention is made as `Kind(spec, weights, options, device)` and called with (x, batch); it owns the
pages of its layer. Every kind of MLP is made the same way and called with (x). The residual stream is float32,
what linears read has the dtype of the options. Libraries pick their order of summation by the number of rows, so
strict means that every row is computed alone: slow, and true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from models.batch import Batch
from models.executor import Options, Output, PageTensor
from models.parameters import parameter_count
from models.plain.attention import PlainAttention, sequences
from models.plain.delta_net import PlainDeltaNet
from models.plain.experts import PlainExperts
from models.plain.latent_attention import PlainLatentAttention
from models.plain.parts import PlainEmbedding, PlainLinear, PlainMlp, PlainNorm, dtype_of, norm_or_cast, summed
from models.projection import torch_projection
from models.sources import ModelError
from models.spec import Attention, Beside, DeltaNet, Entry, Experts, Fused, Given, LatentAttention, Layer, Mlp, Network
from models.taps import FINAL, check_taps
from models.weights import Weights

_ATTENTION: dict[type, Any] = {
    Attention: PlainAttention, LatentAttention: PlainLatentAttention, DeltaNet: PlainDeltaNet,
}  # fmt: skip
_MLP: dict[type, Any] = {Mlp: PlainMlp, Experts: PlainExperts}
# Scores of a sequence's rows are held for all heads at once: more rows would cost memory and win nothing.
_MAX_ROWS = 256


class PlainExecutor:
    """models/executor.py's Executor on any device of torch."""

    max_rows = _MAX_ROWS
    branches = True

    def __init__(self, network: Network, weights: Weights, options: Options, device: str = "cpu") -> None:
        if why := self.why_not(network, options.dtype):
            raise ModelError(f"dtype is {options.dtype}", why)
        check_taps(options.taps, len(network.layers))
        self.strict = options.strict
        self.path = self.computed_by = f"plain torch, {device}{', strict: row by row' if self.strict else ''}"
        self.parameters = parameter_count(network)
        self._device, self._taps, self._dtype = device, options.taps, dtype_of(options)
        self._group, self._vocab_size = options.group, network.vocab_size
        self._share = network.share
        self._embedding = PlainEmbedding(network, weights, options, device)
        self._layers = [_Layer(layer, weights, options, device) for layer in network.layers]
        self._entry = _entry(network.entry, weights, options, device)
        self._context = norm_or_cast(network.context, weights, options, device)
        self._norm = norm_or_cast(network.norm, weights, options, device)
        self._head = PlainLinear(network.head, weights, options, device) if network.head.parts else None

    projection = staticmethod(torch_projection)

    @staticmethod
    def why_not(network: Network, dtype: str) -> str:
        """Why the network can't be run in this dtype, or ""."""
        return "" if dtype in ("bfloat16", "float32") else "plain torch computes in bfloat16 or float32"

    @staticmethod
    def page_bytes(network: Network, options: Options) -> int:
        """Bytes that one page takes in all layers."""
        return sum(_ATTENTION[type(layer.attention)].page_bytes(layer.attention, options) for layer in network.layers)

    @torch.inference_mode()
    def forward(self, batch: Batch, hidden: torch.Tensor | None = None) -> Output:
        assert 1 <= len(batch.tokens) <= self.max_rows
        assert (hidden is None) == (self._entry is None)
        if hidden is not None:
            hidden = hidden.to(self._device)[torch.from_numpy(batch.feature_rows).long().to(self._device)]
        for source, target in batch.forks.reshape(-1, 2).tolist():
            self.copy_page(source, target)
        # Rows of a block read what those behind them stored.
        if not self.strict or len(batch.seen):
            logits, final, features = self._run(batch, hidden)
        else:
            rows = enumerate(_rows_alone(batch))
            parts = [self._run(row, None if hidden is None else hidden[at : at + 1]) for at, row in rows]
            logits, final, features = (torch.cat(each) for each in zip(*parts, strict=True))
            # They came in the order of the rows.
            logits = logits[self._order(batch.wanted[: batch.with_logits])]
            final = final[self._order(batch.wanted)]
        read = final if self._head else None
        if not self._taps:
            return Output(logits, final=read)
        places = torch.from_numpy(batch.feature_rows).long().to(self._device)
        return Output(logits, torch.empty_like(features).index_copy_(0, places, features), read)

    @torch.inference_mode()
    def store(self, batch: Batch, hidden: torch.Tensor) -> None:
        x = self._context(hidden.to(self._device).float())
        for layer in self._layers:
            layer.attention.store(x, batch)

    def _run(
        self, batch: Batch, hidden: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of the wanted rows the logits, where they have some, and what the head reads; and the features of all rows in
        their order, [R, 0] without taps."""
        x, beside = self._embedding(torch.from_numpy(batch.tokens).to(self._device)), None
        if self._entry is not None:
            x, beside = self._entry(x, hidden)
        kept = {}
        for index, layer in enumerate(self._layers):
            x, beside = layer(x, batch, beside), None
            if index in self._taps:
                kept[index] = x.to(self._dtype)
        if FINAL in self._taps:
            kept[FINAL] = self._norm(x)
        wanted = torch.from_numpy(batch.wanted).to(self._device)
        final = self._norm(x[wanted])
        judged = final[: batch.with_logits]
        logits = self._head(judged).float() if self._head else x.new_empty(len(judged), 0)
        if self._group is not None:
            logits = self._group.side_by_side(self._filled(logits), self._vocab_size)
        return logits, final, torch.cat([kept[tap] for tap in self._taps], dim=1) if kept else x[:, :0]

    def _order(self, rows: np.ndarray) -> torch.Tensor:
        """Where each is among them in the order of the rows."""
        return torch.from_numpy(np.argsort(np.argsort(rows))).to(self._device)

    def _filled(self, logits: torch.Tensor) -> torch.Tensor:
        """As wide as everyone's: the last rank may have fewer tokens."""
        return torch.nn.functional.pad(logits, (0, self._share - logits.shape[1]))

    def copy_page(self, source: int, target: int) -> None:
        for layer in self._layers:
            layer.attention.copy_page(source, target)

    @torch.inference_mode()
    def copy_state(self, source: int, target: int) -> None:
        for layer in self._layers:
            layer.attention.copy_state(source, target)

    def page_memory(self) -> Sequence[PageTensor]:
        return [memory for layer in self._layers for memory in layer.attention.page_memory()]

    @torch.inference_mode()
    def move(self, slots: Sequence[tuple[int, int]]) -> None:
        if slots:
            sources, targets = torch.tensor(slots, device=self._device).unbind(1)
            for layer in self._layers:
                layer.attention.move(sources, targets)


class _Layer:
    def __init__(self, spec: Layer, weights: Weights, options: Options, device: str) -> None:
        self._attention_norm = norm_or_cast(spec.attention_norm, weights, options, device)
        self.attention = _ATTENTION[type(spec.attention)](spec.attention, weights, options, device)
        self._mlp_norm = PlainNorm(spec.mlp_norm, weights, options, device)
        self._mlp = _MLP[type(spec.mlp)](spec.mlp, weights, options, device)
        self._group = options.group
        self._ends = [
            PlainNorm(end, weights, options, device) if end else None
            for end in (spec.attention_end_norm, spec.mlp_end_norm)
        ]

    def __call__(self, x: torch.Tensor, batch: Batch, beside: torch.Tensor | None = None) -> torch.Tensor:
        normed = self._attention_norm(x)
        attended = self.attention(normed if beside is None else torch.cat([beside, normed], dim=-1), batch)
        x = x + self._given(attended, self._ends[0])
        return x + self._given(self._mlp(self._mlp_norm(x)), self._ends[1])

    def _given(self, x: torch.Tensor, end: PlainNorm | None) -> torch.Tensor:
        x = summed(self._group, x)
        return end(x) if end else x


class _FusedEntry:
    def __init__(self, spec: Fused, weights: Weights, options: Options, device: str) -> None:
        self._linear = PlainLinear(spec.linear, weights, options, device)
        self._embedding_norm = norm_or_cast(spec.embedding_norm, weights, options, device)
        self._hidden_norm = norm_or_cast(spec.hidden_norm, weights, options, device)
        self._hidden_first = spec.hidden_first

    def __call__(self, x: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, None]:
        pair = [self._embedding_norm(x), self._hidden_norm(hidden)]
        return self._linear(torch.cat(pair[::-1] if self._hidden_first else pair, dim=-1)).float(), None


class _BesideEntry:
    def __init__(self, spec: Beside, weights: Weights, options: Options, device: str) -> None:
        self._embedding_norm = PlainNorm(spec.embedding_norm, weights, options, device)
        self._hidden_norm = PlainNorm(spec.hidden_norm, weights, options, device) if spec.hidden_norm else None

    def __call__(self, x: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (self._hidden_norm(hidden) if self._hidden_norm else hidden).float(), self._embedding_norm(x)


def _entry(entry: Entry | None, weights: Weights, options: Options, device: str) -> Any:
    if entry is None:
        return None
    if isinstance(entry, Given):
        return lambda x, hidden: (hidden.float(), None)
    return (_FusedEntry if isinstance(entry, Fused) else _BesideEntry)(entry, weights, options, device)


def _rows_alone(batch: Batch) -> Iterator[Batch]:
    """Every row as a batch of its own, in their order: a row reads what the rows before it stored."""
    wanted = set(batch.wanted.tolist())
    states_only = set(batch.wanted[batch.with_logits :].tolist())
    states = batch.states.reshape(-1, 2)
    for sequence, (rows, table) in enumerate(sequences(batch)):
        for row in range(rows.start, rows.stop):
            also = batch.also_rows == row
            yield Batch(
                tokens=batch.tokens[row : row + 1],
                positions=batch.positions[row : row + 1],
                slots=batch.slots[row : row + 1],
                tables=table,
                table_width=batch.table_width,
                tiles=np.array([0, 0, 1], np.int32),
                tile_work=np.ones(1, np.int64),
                wanted=np.zeros(int(row in wanted), np.int64),
                also_rows=np.zeros(int(also.sum()), np.int32),
                also_slots=batch.also_slots[also],
                states=states[sequence],
                states_only=int(row in states_only),
            )
