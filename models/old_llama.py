"""Llama and its likes (SmolLM, TinyLlama, Llama 2 and 3) on CPU, over a paged KV cache.

Linears are oneDNN's, packed (models/layers/packed_linear.py); everything between them is a compiled loop
(kernels/*/cpu.py), four calls a layer. The residual stream stays in float32, what linears read is in the
model's dtype. A row's logits don't depend on the rows beside it. Knows nothing of sequences' owners.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from kernels.norm_rope_act.cpu import add_norm, embed, silu_gate
from kernels.paged_attention.cpu import UNROLL, attend, rotate_and_store
from models.batch import Batch
from models.layers.packed_linear import MAX_PADDED_ROWS, PackedLinear, common_range
from models.layers.rope import rope_tables
from models.old_config import ModelConfig
from models.weights import Weights

# Attention work, in pages looked at, from which handing a share to another thread (about 50 µs) pays.
_WORTH_A_THREAD = 128
# Row counts above this are rounded up to a multiple of it: every new count makes oneDNN compile.
_ROUND_ROWS = 8


@dataclass(slots=True)
class _Layer:
    attention_norm: np.ndarray  # [H] float32
    qkv: PackedLinear
    output: PackedLinear
    mlp_norm: np.ndarray
    gate_up: PackedLinear
    down: PackedLinear
    keys: np.ndarray  # [pages, kv_heads, D, page_tokens], flat
    values: np.ndarray  # [pages, kv_heads, page_tokens, D], flat


class Llama:
    """`forward` computes a batch of at most `max_rows` rows. One call at a time."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        *,
        dtype: torch.dtype,
        pages: int,
        page_tokens: int,
        max_context: int,
        threads: int,
    ) -> None:
        assert page_tokens % UNROLL == 0 and config.head_dim % UNROLL == 0
        self.config, self.dtype, self.page_tokens = config, dtype, page_tokens
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, "attend") if threads > 1 else None
        self.parameters = 0
        self._embedding = _flat(self._take_embedding(weights))
        self._cos, self._sin = (_flat(table) for table in rope_tables(config.rope, max_context))
        shape = (config.layers, pages, config.kv_heads, page_tokens * config.head_dim)
        # Untouched memory: the system hands it out page by page, and no loop reads what was not written.
        self._keys, self._values = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype)
        self._layers = [self._take_layer(weights, index) for index in range(config.layers)]
        self._norm = self._take_norm(weights, "model.norm.weight")
        self._head = self._take_head(weights)
        self._find_row_ranges()
        self._make_buffers()

    # Loading ------------------------------------------------------------------------------------------

    def _take(self, weights: Weights, name: str, *shape: int) -> torch.Tensor:
        tensor = weights.take(name, *shape)
        self.parameters += tensor.numel()
        return tensor

    def _take_embedding(self, weights: Weights) -> torch.Tensor:
        table = self._take(weights, "model.embed_tokens.weight", self.config.vocab_size, self.config.hidden_size)
        # Rows are read one at a time, so bfloat16 stays where it is mapped, also under a float32 model.
        return table.float() if table.dtype == torch.float16 else table

    def _take_norm(self, weights: Weights, name: str) -> np.ndarray:
        return _flat(self._take(weights, name, self.config.hidden_size).float())

    def _take_layer(self, weights: Weights, index: int) -> _Layer:
        c, prefix = self.config, f"model.layers.{index}."
        q, kv, wide = c.heads * c.head_dim, c.kv_heads * c.head_dim, c.intermediate_size
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        return _Layer(
            attention_norm=self._take_norm(weights, f"{prefix}input_layernorm.weight"),
            qkv=self._take_linear(
                weights,
                [(f"{attention}q_proj", q), (f"{attention}k_proj", kv), (f"{attention}v_proj", kv)],
                c.hidden_size,
                c.attention_bias,
            ),
            output=self._take_linear(weights, [(f"{attention}o_proj", c.hidden_size)], q, c.attention_bias),
            mlp_norm=self._take_norm(weights, f"{prefix}post_attention_layernorm.weight"),
            gate_up=self._take_linear(
                weights, [(f"{mlp}gate_proj", wide), (f"{mlp}up_proj", wide)], c.hidden_size, c.mlp_bias
            ),
            down=self._take_linear(weights, [(f"{mlp}down_proj", c.hidden_size)], wide, c.mlp_bias),
            keys=_flat(self._keys[index]),
            values=_flat(self._values[index]),
        )

    def _take_linear(self, weights: Weights, parts: list[tuple[str, int]], inputs: int, bias: bool) -> PackedLinear:
        """One linear from several that read the same input: fewer and larger calls."""
        stacked = torch.cat([self._take(weights, f"{name}.weight", n, inputs) for name, n in parts])
        added = torch.cat([self._take(weights, f"{name}.bias", n) for name, n in parts]) if bias else None
        return PackedLinear(stacked.to(self.dtype), None if added is None else added.to(self.dtype))

    def _take_head(self, weights: Weights) -> PackedLinear:
        shape = (self.config.vocab_size, self.config.hidden_size)
        if self.config.tied_embeddings:
            return PackedLinear(weights.take("model.embed_tokens.weight", *shape).to(self.dtype), None)
        return PackedLinear(self._take(weights, "lm_head.weight", *shape).to(self.dtype), None)

    def _find_row_ranges(self) -> None:
        linears = [linear for x in self._layers for linear in (x.qkv, x.output, x.gate_up, x.down)]
        self.row_range = common_range(linears)
        self.head_range = self._head.find_range()
        self.max_rows = self.row_range.high

    def _make_buffers(self) -> None:
        """Written by every forward; room for padding, whose rows hold what an earlier call left there."""
        c, rows = self.config, max(self.max_rows, MAX_PADDED_ROWS)
        attended = c.heads * c.head_dim
        self._residual = np.zeros(rows * c.hidden_size, np.float32)
        self._queries = np.zeros(rows * attended, np.float32)
        self._normed_rows = torch.zeros(rows, c.hidden_size, dtype=self.dtype)
        self._attended_rows = torch.zeros(rows, attended, dtype=self.dtype)
        self._gated_rows = torch.zeros(rows, c.intermediate_size, dtype=self.dtype)
        self._normed, self._attended = _flat(self._normed_rows), _flat(self._attended_rows)
        self._gated = _flat(self._gated_rows)

    # Running ------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def copy_page(self, source: int, target: int) -> None:
        for stored in (self._keys, self._values):
            stored[:, target] = stored[:, source]

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits of the wanted rows, float32 [W, vocab]; keys and values of all rows go to their slots."""
        c, rows = self.config, len(batch.tokens)
        assert 1 <= rows <= self.max_rows
        padded = self._padded(rows)
        normed, attended = self._normed_rows[:padded], self._attended_rows[:padded]
        gated = self._gated_rows[:padded]
        shares = self._shares(batch)
        embed(batch.tokens, self._embedding, self._residual, rows, c.hidden_size)
        delta: torch.Tensor | None = None
        for layer in self._layers:
            self._add_norm(delta, layer.attention_norm, rows)
            self._attend(layer, layer.qkv(normed), batch, shares)
            self._add_norm(layer.output(attended), layer.mlp_norm, rows)
            gate_up = layer.gate_up(normed)
            silu_gate(gate_up.data_ptr(), self._gated, rows, c.intermediate_size)
            delta = layer.down(gated)
        self._add_norm(delta, self._norm, rows)
        return self._logits(batch.wanted)

    def _padded(self, rows: int) -> int:
        if rows > _ROUND_ROWS:
            rows = -(-rows // _ROUND_ROWS) * _ROUND_ROWS
        return min(max(rows, self.row_range.low), self.row_range.high)

    def _add_norm(self, delta: torch.Tensor | None, weight: np.ndarray, rows: int) -> None:
        address = 0 if delta is None else delta.data_ptr()
        add_norm(self._residual, address, weight, self.config.norm_epsilon, self._normed, rows, self.config.hidden_size)

    def _attend(self, layer: _Layer, qkv: torch.Tensor, batch: Batch, shares: list[tuple[int, int]]) -> None:
        c = self.config
        rotate_and_store(
            qkv.data_ptr(), self._queries, layer.keys, layer.values, batch.slots, batch.positions,
            self._cos, self._sin, len(batch.tokens), c.heads, c.kv_heads, c.head_dim, self.page_tokens,
        )  # fmt: skip
        # The last share is ours; compiled loops release the interpreter lock.
        others = [self._pool.submit(self._attend_share, layer, batch, *share) for share in shares[:-1]]
        self._attend_share(layer, batch, *shares[-1])
        for other in others:
            other.result()

    def _attend_share(self, layer: _Layer, batch: Batch, first_item: int, last_item: int) -> None:
        c = self.config
        attend(
            self._queries, layer.keys, layer.values, batch.tables, batch.table_width, batch.tiles,
            first_item, last_item, batch.positions, self._attended,
            c.heads, c.kv_heads, c.head_dim, self.page_tokens,
        )  # fmt: skip

    def _shares(self, batch: Batch) -> list[tuple[int, int]]:
        """Ranges of (tile, kv head) items for the threads, of about equal work."""
        items = len(batch.tile_work) * self.config.kv_heads
        total = int(batch.tile_work.sum())
        count = min(self._threads, items, 1 + total // _WORTH_A_THREAD)
        if count == 1:
            return [(0, items)]
        done = np.cumsum(np.repeat(batch.tile_work, self.config.kv_heads))
        cuts = np.searchsorted(done, done[-1] * np.arange(1, count) / count, side="left") + 1
        edges = [0, *(int(cut) for cut in cuts), items]
        return [(first, last) for first, last in pairwise(edges) if first < last]

    def _logits(self, wanted: np.ndarray) -> torch.Tensor:
        count = len(wanted)
        logits = torch.empty(count, self.config.vocab_size)
        for first in range(0, count, self.head_range.high):
            piece = wanted[first : first + self.head_range.high]
            # Padding repeats a row: any row will do.
            padded = np.pad(piece, (0, max(0, self.head_range.low - len(piece))), mode="edge")
            # The output is copied into float32: sampling works in it, and the head's own buffer is freed.
            logits[first : first + len(piece)] = self._head(self._normed_rows[padded])[: len(piece)]
        return logits


def _flat(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's memory as a flat array; bfloat16 shows as uint16."""
    tensor = tensor.contiguous()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).view(-1).numpy()
