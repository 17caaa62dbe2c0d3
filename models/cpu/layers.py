"""From a network's layers to the ops of a program: weights are packed here, and ops are told where to read.

    residual -norm-> normed -qkv-> qkv -attention-> attended -output(+)-> residual
             -norm-> normed -gate·up-> gated -down(+)-> residual

Buffers are shared by all layers. With int8 every linear's input has a twin of bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from kernels.cpu_program import ROWS, WANTED_COUNT, Op
from kernels.cpu_vectors import HAS_BFLOAT16_DOT
from kernels.linear.cpu import ADD, GATE, STORE, Rows, linear, quantize_rows
from kernels.linear.packing import Memory, PackedWeight, pack
from kernels.mla_attention.cpu import LatentShape
from kernels.moe.cpu import PlaceBuffers, Routed
from kernels.norm_rope_act.cpu_rows import embed, norm
from kernels.paged_attention.cpu_ops import HeadNorm, Places, Shape, Workspace, attention_ops
from models import spec
from models.batch import TILE_ROWS
from models.cpu import experts, latent_attention
from models.cpu.memory import Buffer
from models.executor import Options
from models.layers.rope import rope_tables
from models.quantized.stored import StoredPart
from models.weights import Weights

# What a linear reads, and its twin of bytes.
_Input = tuple[Buffer, Buffer | None]
Made = TypeVar("Made")
_NAMES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}


def activation_dtype(dtype: str) -> torch.dtype:
    """Of what stands between the ops, and of keys and values."""
    if dtype == "float32" or (dtype == "int8" and not HAS_BFLOAT16_DOT):
        return torch.float32
    return torch.bfloat16


def shape_of(attention: spec.Attention | spec.LatentAttention, options: Options) -> Shape | LatentShape:
    dtype = _NAMES[activation_dtype(options.dtype)]
    if isinstance(attention, spec.LatentAttention):
        return latent_attention.shape_of(attention, dtype, options.page_tokens)
    return Shape(
        dtype=dtype,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        page_tokens=options.page_tokens,
        scale=attention.scale,
        rope_width=attention.rope.width,
        interleaved=attention.rope.interleaved,
        window=attention.window,
    )


class Builder:
    """`build` once. Afterwards `pages` has, for every layer, its keys and its values, [pages, bytes of one]."""

    def __init__(self, network: spec.Network, weights: Weights, options: Options, max_rows: int) -> None:
        self._network, self._weights, self._options = network, weights, options
        self._max_rows = max_rows
        self._dtype = activation_dtype(options.dtype)
        self._kind = options.dtype
        self._memory = Memory()
        self._keeps: list[torch.Tensor] = []
        self._made: dict[Any, Any] = {}
        self.pages: list[torch.Tensor] = []
        attentions = [layer.attention for layer in network.layers]
        self._residual = self._buffer(network.hidden_size, torch.float32)
        self._normed = self._input(network.hidden_size)
        grouped = [one for one in attentions if isinstance(one, spec.Attention)]
        self._qkv = self._buffer(max((one.qkv.outputs for one in grouped), default=0))
        self._attended = self._input(max(one.output.inputs for one in attentions))
        dense = [layer.mlp.shared if isinstance(layer.mlp, spec.Experts) else layer.mlp for layer in network.layers]
        self._gated = self._input(max((mlp.down.inputs for mlp in dense if mlp), default=0))
        self.logits = self._buffer(network.vocab_size, torch.float32)

    def build(self) -> list[Op]:
        network = self._network
        table = self._weights.take(network.embedding, network.vocab_size, network.hidden_size)
        # Rows are read one at a time, so bfloat16 stays where it is mapped, also under a float32 model.
        table = table.float() if table.dtype == torch.float16 else table
        ops = [embed(table, self._residual.address)]
        for layer in network.layers:
            ops += [self._norm(layer.attention_norm), *self._attention(layer.attention)]
            ops += [self._norm(layer.mlp_norm), *self._mlp(layer.mlp)]
        head = self._pack(network.head)
        x, quantized = self._normed
        ops.append(
            norm(self._residual.address, self._norm_weight(network.norm), network.norm.epsilon, x.rows, x.dtype,
                 None if quantized is None else quantized.rows, wanted_only=True)
        )  # fmt: skip
        ops.append(self._linear(head, self._normed, self.logits.rows, torch.float32, STORE, WANTED_COUNT))
        # What no op holds by itself lives as long as the first one.
        ops[0] = Op(ops[0].run, ops[0].chunks, ops[0].words, (*ops[0].keeps, self))
        return ops

    # Parts ------------------------------------------------------------------------------------------------

    def _attention(self, attention: spec.Attention | spec.LatentAttention) -> list[Op]:
        shape = shape_of(attention, self._options)
        if isinstance(attention, spec.LatentAttention):
            return latent_attention.latent_attention(self, attention, shape)
        keys, values = (self._make_pages(words) for words in shape.page_words)
        cos, sin = self._tables(attention.rope)
        out = self._attended[0].address
        places = Places(self._qkv.address, out, *(each.data_ptr() for each in (keys, values, cos, sin)))
        norms = self._head_norm(attention.q_norm), self._head_norm(attention.k_norm)
        return [
            self._linear(self._pack(attention.qkv), self._normed, self._qkv.rows, self._dtype, STORE),
            *attention_ops(shape, places, self._workspace(shape), *norms),
            *self._quantize(self._attended, attention.output.inputs),
            self._linear(self._pack(attention.output), self._attended, self._residual.rows, torch.float32, ADD),
        ]

    def _mlp(self, mlp: spec.Mlp | spec.Experts) -> list[Op]:
        if isinstance(mlp, spec.Experts):
            return experts.experts(self, mlp)
        gated = Rows(self._gated[0].address, mlp.down.inputs * self._dtype.itemsize)
        return [
            self._linear(self._pack(mlp.gate_up, gated=True), self._normed, gated, self._dtype, GATE),
            *self._quantize(self._gated, mlp.down.inputs),
            self._linear(self._pack(mlp.down), self._gated, self._residual.rows, torch.float32, ADD),
        ]

    def _linear(
        self, weight: PackedWeight, x: _Input, out: Rows, dtype: torch.dtype, ending: str, rows_at: int = ROWS
    ) -> Op:
        source = x[1] or x[0]
        # Rows stand one behind the other, whatever the widest layer needs.
        rows = Rows(source.address, weight.inputs * source.dtype.itemsize, source.rows.scales)
        return linear(weight, rows, out, dtype, ending, rows_at, threads=self._options.threads)

    def _quantize(self, x: _Input, width: int) -> list[Op]:
        plain, quantized = x
        if quantized is None:
            return []
        rows = Rows(plain.address, width * plain.dtype.itemsize)
        return [quantize_rows(rows, plain.dtype, width, Rows(quantized.address, width, quantized.rows.scales))]

    def _norm(self, spec_norm: spec.Norm) -> Op:
        x, quantized = self._normed
        return norm(
            self._residual.address, self._norm_weight(spec_norm), spec_norm.epsilon, x.rows, x.dtype,
            None if quantized is None else quantized.rows,
        )  # fmt: skip

    # Weights ----------------------------------------------------------------------------------------------

    def _pack(self, linear_spec: spec.Linear, gated: bool = False) -> PackedWeight:
        weight, scales = self._source(linear_spec)
        bias = self._weights.linear(linear_spec).bias(torch.float32) if linear_spec.bias else None
        return pack(weight, self._kind, bias, scales, gated=gated, memory=self._memory)

    def _source(self, linear_spec: spec.Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A weight as `pack` takes it: dense, or int8 with a scale an output where it is stored so."""
        stored = self._weights.linear(linear_spec)
        if self._kind == "int8" and all(part.kind == "int8" and _per_output(part) for part in stored.parts):
            codes = torch.cat([part.codes for part in stored.parts])
            return codes, torch.cat([part.scales.flatten() for part in stored.parts])
        return stored.dense(torch.bfloat16 if self._kind == "bfloat16" else torch.float32), None

    def _norm_weight(self, one: spec.Norm) -> torch.Tensor:
        weight = self._weights.take(f"{one.name}.weight", one.width).float().contiguous()
        self._keeps.append(weight)
        return weight

    def _head_norm(self, one: spec.Norm | None) -> HeadNorm:
        return HeadNorm(0, 0.0) if one is None else HeadNorm(self._norm_weight(one).data_ptr(), one.epsilon)

    # Memory -----------------------------------------------------------------------------------------------

    def _buffer(self, width: int, dtype: torch.dtype | None = None) -> Buffer:
        return Buffer.of(self._max_rows, width, dtype or self._dtype)

    def _input(self, width: int) -> _Input:
        return self._buffer(width), self._buffer(width, torch.uint8) if self._kind == "int8" else None

    def _once(self, key: Any, make: Callable[[], Made]) -> Made:
        """What layers with the same needs share."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[no-any-return]

    def _shared(self, name: str, width: int, dtype: torch.dtype | None = None) -> Buffer:
        """One for all layers that call it so."""
        return self._once((name, width, dtype), lambda: self._buffer(width, dtype))

    def _shared_input(self, name: str, width: int) -> _Input:
        return self._once((name, width), lambda: self._input(width))

    def _routed(self, count: int, top_k: int) -> Routed:
        return self._once(("routed", count, top_k), lambda: Routed.empty(self._max_rows, count, top_k))

    def _places(self, top_k: int, wide: int) -> PlaceBuffers:
        facts = self._max_rows, top_k, self._network.hidden_size, wide, self._dtype, self._kind == "int8"
        return self._once(("places", *facts), lambda: PlaceBuffers(*facts))

    def _make_pages(self, words: int) -> torch.Tensor:
        pages = torch.empty(self._options.pages, words * 4, dtype=torch.uint8)
        self.pages.append(pages)
        return pages

    def _tables(self, rope: spec.Rope) -> tuple[torch.Tensor, torch.Tensor]:
        return self._once(("tables", rope), lambda: _contiguous(*rope_tables(rope, self._options.max_context)))

    def _workspace(self, shape: Shape) -> Workspace:
        threads = self._options.threads
        return self._once(("workspace", shape), lambda: Workspace(shape, threads=threads, tile_rows=TILE_ROWS))


def _contiguous(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.contiguous() for tensor in tensors)


def _per_output(part: StoredPart) -> bool:
    """Whether the codes are what the int8 kernel takes: a scale an output, no zeros."""
    return part.zeros is None and part.block_rows == 1 and part.scales is not None and part.scales.shape[1] == 1


def page_bytes(network: spec.Network, options: Options) -> int:
    """Bytes that one page takes in all layers."""
    shapes = [shape_of(layer.attention, options) for layer in network.layers]
    shapes = [shape.attention if isinstance(shape, LatentShape) else shape for shape in shapes]
    return sum(4 * sum(shape.page_words) for shape in shapes)


def why_not(network: spec.Network, dtype: str) -> str:
    """"": the loops run this network."""
    for layer in network.layers:
        if isinstance(layer.attention, spec.LatentAttention) and (why := latent_attention.why_not(layer.attention)):
            return why
        if isinstance(layer.mlp, spec.Experts) and (why := experts.why_not(layer.mlp)):
            return why
    return ""
