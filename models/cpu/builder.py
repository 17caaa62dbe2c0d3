"""What all parts of a network are built from: packed weights, buffers and tables that layers share, pages.

With int8 linears every linear's input has a second buffer of bytes. Knows no order of parts: dense.py,
experts.py and latent_attention.py put ops together, layers.py the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from kernels import amx
from kernels.cpu_instructions import ALL, Instructions
from kernels.cpu_program import ROWS, WANTED_COUNT, Op
from kernels.delta_rule.reference import Memory
from kernels.linear.cpu import ADD, STORE, Rows, linear, quantize_rows
from kernels.linear.packing import PackedMemory, PackedWeight, pack
from kernels.moe.cpu import PlaceBuffers, Routed
from kernels.norm_rope_act.cpu_rows import add_normed, clear, norm, take, tap, wanted
from kernels.paged_attention.cpu_ops import HeadNorm, Shape, Workspace
from models import spec
from models.batch import TILE_ROWS
from models.cpu.memory import Buffer
from models.executor import Options
from models.layers.rope import rope_tables
from models.quantized.stored import StoredPart
from models.taps import FINAL, Tap
from models.weights import Weights, norm_weight, sinks_of

# What a linear reads, and its twin of bytes.
Input = tuple[Buffer, Buffer | None]
Made = TypeVar("Made")
# What is computed in order: a buffer stands where its rows are summed over the ranks.
Step = Op | Buffer


def activation_dtype(dtype: str, use: Instructions = ALL) -> torch.dtype:
    """The dtype of rows between ops, and of keys and values. Without instructions for bfloat16 it is float32, whatever
    the weights are: conversions would take longer than the memory that they save."""
    return torch.bfloat16 if amx.HAS_PAIRS and use.bfloat16 and dtype != "float32" else torch.float32


class ModelBuilder:
    """`pages` are those of all layers made so far: keys, then values, each [pages, bytes of one]; `memories` those of
    delta nets.

    Buffers have room for the widest layer; rows of a narrower one are packed.
    """

    def __init__(self, network: spec.Network, weights: Weights, options: Options, max_rows: int) -> None:
        self.network, self.weights, self.options = network, weights, options
        self.use, self.kind, self.threads = options.instructions, options.dtype, options.threads
        self.dtype = activation_dtype(options.dtype, self.use)
        self.memory = PackedMemory()
        self.pages: list[torch.Tensor] = []
        self.memories: list[Memory] = []
        self._max_rows = max_rows
        # The step's word that says how many rows ops have.
        self._rows_at = ROWS
        self._keeps: list[torch.Tensor] = []
        self._made: dict[Any, Any] = {}
        attentions = [layer.attention for layer in network.layers]
        self.residual = self._buffer(network.hidden_size, torch.float32)
        self.normed = self._input(network.hidden_size)
        # Of a network with an entry: what its rows come with, and two rows side by side.
        entered = network.entry is not None
        given = entered or network.context is not None
        self.hidden = self._buffer(network.hidden_size, torch.float32) if given else None
        self.pair = self._input(2 * network.hidden_size) if entered else None
        # Of all layers: from normed rows to keys and values in pages.
        self.stores: list[Op] = []
        grouped = [one for one in attentions if isinstance(one, spec.Attention)]
        self.qkv = self._buffer(max((one.qkv.outputs for one in grouped), default=0))
        self.attended = self._input(max(one.output.inputs for one in attentions))
        dense = [layer.mlp.shared if isinstance(layer.mlp, spec.Experts) else layer.mlp for layer in network.layers]
        self.gated = self._input(max((mlp.down.inputs for mlp in dense if mlp), default=0))
        self.logits = self._buffer(network.share or network.head.outputs, torch.float32)
        self.features = self._buffer(network.hidden_size * len(options.taps)) if options.taps else None

    # Ops --------------------------------------------------------------------------------------------------

    def linear(
        self, weight: PackedWeight, x: Input, out: Rows, dtype: torch.dtype, ending: str, rows_at: int | None = None,
        activation: str = "silu", limit: float = 0.0,
    ) -> Op:  # fmt: skip
        source = x[1] or x[0]
        rows = Rows(source.address, weight.inputs * source.dtype.itemsize, source.rows.scales)
        at, threads = self._rows_at if rows_at is None else rows_at, self.threads
        return linear(
            weight, rows, out, dtype, ending, at, threads=threads, activation=activation, limit=limit,
            use=self.use,
        )  # fmt: skip

    def quantize(self, x: Input, width: int) -> list[Op]:
        """Its bytes, if there are to be any."""
        plain, quantized = x
        if quantized is None:
            return []
        rows = Rows(plain.address, width * plain.dtype.itemsize)
        out = Rows(quantized.address, width, quantized.rows.scales)
        return [quantize_rows(rows, plain.dtype, width, out, self._rows_at)]

    def only_wanted(self, width: int) -> list[Op]:
        """Ops made after these have the wanted rows alone, one behind the other in the residual and in `attended`,
        where rows have `width` values."""
        attended, residual = self.attended[0], self.residual
        self._keeps += [attended.memory, residual.memory]
        self.attended = self._buffer(width), self.attended[1]
        self.residual = self._buffer(residual.width, torch.float32)
        self._rows_at = WANTED_COUNT
        words = width * attended.dtype.itemsize // 4
        return [
            wanted(attended.address, self.attended[0].address, words),
            wanted(residual.address, self.residual.address, residual.width),
        ]

    def norm(self, one: spec.Norm | None, wanted_only: bool = False) -> Op:
        """From the residual to `normed`; None: only the dtype changes."""
        x, quantized = self.normed
        rows = Rows(x.address, self.network.hidden_size * x.dtype.itemsize)
        return self._norm(one, rows, None if quantized is None else quantized.rows, wanted_only)

    def context(self, one: spec.Norm) -> list[Op]:
        """From what the rows come with to keys and values of all layers."""
        assert self.hidden is not None and self._rows_at == ROWS
        taken = take(self.hidden.address, self.residual.address, self.network.hidden_size)
        return [taken, self.norm(one), *self.stores]

    def norm_residual(self, one: spec.Norm) -> Op:
        """In place."""
        weight, width = self.norm_weight(one), self.network.hidden_size
        return norm(self.residual.address, width, weight, one.epsilon, self.residual.rows, torch.float32)

    def half(self, one: spec.Norm | None, second: bool) -> Op:
        """From the residual to the first or the second half of `pair`."""
        assert self.pair is not None
        rows = self.pair[0].rows
        at = rows.address + second * self.network.hidden_size * self.dtype.itemsize
        return self._norm(one, Rows(at, rows.stride))

    def _norm(self, one: spec.Norm | None, out: Rows, quantized: Rows | None = None, wanted_only: bool = False) -> Op:
        weight, epsilon = (None, 0.0) if one is None else (self.norm_weight(one), one.epsilon)
        width, wanted_only = self.network.hidden_size, wanted_only and self._rows_at == ROWS
        return norm(
            self.residual.address, width, weight, epsilon, out, self.dtype, quantized, wanted_only, self._rows_at
        )

    def taps(self, place: Tap) -> list[Op]:
        """What is kept of the residual at this place of the network: an op if it is a tap, else none."""
        if place not in self.options.taps:
            return []
        assert self.features is not None
        width, out = self.network.hidden_size, self.features.rows
        column = self.options.taps.index(place) * width * self.dtype.itemsize
        rows = Rows(out.address + column, out.stride)
        if place != FINAL:
            return [tap(self.residual.address, width, rows, self.dtype)]
        norm = self.network.norm
        if norm is None:
            return [tap(self.residual.address, width, rows, self.dtype)]
        return [tap(self.residual.address, width, rows, self.dtype, self.norm_weight(norm), norm.epsilon)]

    def add(self, weight: PackedWeight, x: Input, end: spec.Norm | None) -> Op:
        """What a layer's part gives, to the residual, or where it is `end` normed first."""
        if end is None:
            return self.linear(weight, x, self.residual.rows, torch.float32, ADD)
        return self.linear(weight, x, self.given.rows, torch.float32, STORE)

    def summed(self, ops: list[Op], end: spec.Norm | None) -> list[Step]:
        """Ops that add to the residual, and with other ranks the mark where it is summed: rank 0 has the residual in
        its sum, the others only what they add. With a norm at the end what it reads is summed, and every rank adds."""
        group, residual = self.options.group, self.residual
        if end is not None:
            given, weight = self.given, self.norm_weight(end)
            added = add_normed(given.address, residual.address, residual.width, weight, end.epsilon, self._rows_at)
            return [*ops, *([given] if group else []), added]
        if group is None:
            return [*ops]
        # What reads the residual has read it.
        return [*([clear(residual.address, residual.width)] if group.rank else []), *ops, residual]

    # Weights ----------------------------------------------------------------------------------------------

    def pack(self, one: spec.Linear, gated: bool = False) -> PackedWeight:
        weight, scales = self.source(one)
        bias = self.weights.linear(one).bias(torch.float32) if one.bias else None
        return pack([weight], self.kind, bias, scales, gated=gated, memory=self.memory)

    def source(self, one: spec.Linear) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None]:
        """Parts of a weight as `pack` of kernels/linear takes them: dense, or int8 with scales of all outputs where
        stored so."""
        stored = self.weights.linear(one)
        if self.kind == "int8" and all(part.kind == "int8" and _per_output(part) for part in stored.parts):
            scales = torch.cat([part.scales.flatten() for part in stored.parts])
            return tuple(part.codes for part in stored.parts), scales
        dtype = torch.bfloat16 if self.kind == "bfloat16" else torch.float32
        return tuple(part.dense(dtype) for part in stored.parts), None

    def norm_weight(self, one: spec.Norm) -> torch.Tensor:
        weight = norm_weight(one, self.weights).clone()
        self._keeps.append(weight)
        return weight

    def head_norm(self, one: spec.Norm | None) -> HeadNorm:
        return HeadNorm(0, 0.0) if one is None else HeadNorm(self.norm_weight(one).data_ptr(), one.epsilon)

    def sinks(self, one: spec.Attention) -> int:
        """Their address, in powers of two; 0: none."""
        sinks = sinks_of(one, self.weights)
        if sinks is None:
            return 0
        self._keeps.append((sinks * math.log2(math.e)).contiguous())
        return self._keeps[-1].data_ptr()

    # Memory -----------------------------------------------------------------------------------------------

    @property
    def given(self) -> Buffer:
        return self.shared("given", self.network.hidden_size, torch.float32)

    def shared(self, name: str, width: int, dtype: torch.dtype | None = None) -> Buffer:
        """One for all layers that call it so."""
        return self._once((name, width, dtype), lambda: self._buffer(width, dtype))

    def shared_input(self, name: str, width: int) -> Input:
        return self._once((name, width), lambda: self._input(width))

    def routed(self, one: spec.Experts) -> Routed:
        facts = len(one.experts), one.router.top_k, one.first
        return self._once(("routed", *facts), lambda: Routed.empty(self._max_rows, *facts))

    def places(self, top_k: int, wide: int) -> PlaceBuffers:
        facts = self._max_rows, top_k, self.network.hidden_size, wide, self.dtype, self.kind == "int8"
        return self._once(("places", *facts), lambda: PlaceBuffers(*facts))

    def rope_tables(self, rope: spec.Rope) -> tuple[torch.Tensor, torch.Tensor]:
        return self._once(("tables", rope), lambda: _contiguous(*rope_tables(rope, self.options.max_context)))

    def workspace(self, shape: Shape) -> Workspace:
        return self._once(("workspace", shape), lambda: Workspace(shape, threads=self.threads, tile_rows=TILE_ROWS))

    def shared_space(self, size: int) -> torch.Tensor:
        """Of each thread, bytes that hold nothing between ops."""
        return self._once(("space", size), lambda: torch.empty(self.threads, size, dtype=torch.uint8))

    def make_pages(self, words: int) -> torch.Tensor:
        """A layer's own, of so many words of 32 bits."""
        pages = torch.empty(self.options.pages + self.options.branch_pages, words * 4, dtype=torch.uint8)
        self.pages.append(pages)
        return pages

    def _once(self, key: Any, make: Callable[[], Made]) -> Made:
        """What layers with the same needs share."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[no-any-return]

    def _buffer(self, width: int, dtype: torch.dtype | None = None) -> Buffer:
        return Buffer.of(self._max_rows, width, dtype or self.dtype)

    def _input(self, width: int) -> Input:
        return self._buffer(width), self._buffer(width, torch.uint8) if self.kind == "int8" else None


def _contiguous(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.contiguous() for tensor in tensors)


def _per_output(part: StoredPart) -> bool:
    """Whether the codes are what the int8 kernel takes: a scale an output, no zeros."""
    return part.zeros is None and part.block_rows == 1 and part.scales is not None and part.scales.shape[1] == 1
