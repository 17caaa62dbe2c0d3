"""Linears of a network on a GPU: one class for each way to multiply, and `make_linear`, which picks by how the weight
is stored and by what was asked for. Each says `how` it multiplies, for the executor's path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from kernels.gemm import fused as gemm
from kernels.gemm.ending import interleaved, whole
from kernels.gemm.ranges import Product
from kernels.norm_rope_act.fused import gated
from kernels.quant import fused as quant
from kernels.quant.reference import quantize_rows
from models.gpu.place import Place
from models.quantized.stored import OF_NUMBERS, StoredLinear, StoredPart
from models.spec import Linear, Mlp

# What the matrix unit takes of e4m3 at once: groups are whole multiples.
_FP8_STEP = 32


class GpuLinear(ABC):
    how: str

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        """[R, K] -> [R, N], of x's dtype unless another is asked for."""
        return whole(self.product(x, out_dtype))

    @abstractmethod
    def product(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> Product:
        """The same, for who adds the ranges of K where it is cut."""


class InvariantLinear(GpuLinear):
    """Triton with a fixed tile: a row's bits depend on the row alone."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.how = f"{_name(weight.dtype)} (Triton)"
        self.weight, self.bias = weight, bias

    def product(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> Product:
        return gemm.product(x, self.weight, self.bias, out_dtype)


class InvariantGates(GpuLinear):
    """An InvariantLinear of gates and ups, and the activation, in one kernel."""

    def __init__(self, linear: InvariantLinear, activation: str, limit: float) -> None:
        self.how, self._activation, self._limit = linear.how, activation, limit
        self._weight = interleaved(linear.weight)
        self._bias = None if linear.bias is None else interleaved(linear.bias)

    def product(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> Product:
        return gemm.linear(x, self._weight, self._bias, out_dtype, activation=self._activation, limit=self._limit)


class LibraryLinear(GpuLinear):
    """The vendor's library, which picks a kernel by the number of rows."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.how = f"{_name(weight.dtype)} ({'cuBLAS' if weight.is_cuda else 'torch'})"
        self.weight, self._bias = weight, bias

    def product(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> Product:
        out = torch.nn.functional.linear(x, self.weight, self._bias)
        return out if out_dtype is None else out.to(out_dtype)


class ThenGated(GpuLinear):
    """A linear of gates and ups, and the activation behind it."""

    def __init__(self, linear: GpuLinear, activation: str, limit: float) -> None:
        self.how, self._linear, self._activation, self._limit = linear.how, linear, activation, limit

    def product(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> Product:
        return gated(self._linear(x, out_dtype), self._activation, self._limit)


class Int8Linear(GpuLinear):
    """int8 weights with a scale a column, activations made int8 with a scale a row."""

    how = "int8 x int8"

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._codes, self._scales, self._bias = codes, scales, bias

    def product(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> Product:
        return quant.linear_int8(*quant.quantize_rows(x), self._codes, self._scales, self._bias, out_dtype or x.dtype)


class Fp8Linear(GpuLinear):
    """e4m3 weights, activations made e4m3 in groups as wide as the weight's."""

    how = "e4m3 x e4m3"

    def __init__(self, part: StoredPart, bias: torch.Tensor | None, device: torch.device) -> None:
        self._codes, self._scales = part.codes.to(device), part.scales.float().to(device).contiguous()
        self._block_rows, self._group, self._bias = part.block_rows, part.group_size, bias

    def product(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> Product:
        codes, scales = quant.quantize_rows_fp8(x, self._group)
        return quant.linear_fp8(
            codes, scales, self._codes, self._scales, self._block_rows, self._group, self._bias, out_dtype or x.dtype
        )


class CodedLinear(GpuLinear):
    """Codes made numbers of x's dtype on their way into the matrix unit."""

    def __init__(
        self, part: StoredPart, bias: torch.Tensor | None, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.how = f"{part.kind} codes made dense on the way"
        group = 0 if part.groups is not None else part.group_size or part.inputs
        self._codes = quant.halves_apart(part.codes.to(device), part.inputs, group, dtype).contiguous()
        self._scales = part.scales.to(device).contiguous()
        self._zeros = None if part.zeros is None else part.zeros.to(device).contiguous()
        self._groups = None if part.groups is None else part.groups.to(device)
        self._group_size, self._block_rows, self._bias = part.group_size, part.block_rows, bias

    def product(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> Product:
        return quant.linear_coded(
            x, self._codes, self._scales, self._zeros, self._groups, self._group_size, self._block_rows, self._bias,
            out_dtype,
        )  # fmt: skip


def make_linear(spec: Linear, place: Place) -> GpuLinear:
    stored = place.weights.linear(spec)
    bias = stored.bias(place.dtype)
    bias = None if bias is None else bias.to(place.device)
    if place.options.dtype == "int8":
        # A scale for each output. Codes that were made with others are made anew from their numbers.
        codes, scales = per_output(stored) or quantize_rows(stored.dense(torch.float32))
        return Int8Linear(codes.to(place.device), scales.to(place.device), bias)
    part = one_part(stored)
    if part is None or part.kind == "plain":
        weight = stored.dense(place.dtype).to(place.device).contiguous()
        return (InvariantLinear if place.options.strict else LibraryLinear)(weight, bias)
    if part.kind == "int8" and part.activations and (own := per_output(stored)):
        return Int8Linear(own[0].to(place.device), own[1].to(place.device), bias)
    if part.kind == "fp8" and part.activations and place.arch >= quant.FP8_FROM and part.group_size % _FP8_STEP == 0:
        return Fp8Linear(part, bias, place.device)
    return CodedLinear(part, bias, place.dtype, place.device)


def make_gates(spec: Mlp, place: Place) -> GpuLinear:
    """f(gate) · up: [R, K] -> [R, I]."""
    linear = make_linear(spec.gate_up, place)
    if isinstance(linear, InvariantLinear):
        return InvariantGates(linear, spec.activation, spec.limit)
    return ThenGated(linear, spec.activation, spec.limit)


def one_part(stored: StoredLinear) -> StoredPart | None:
    """All parts as one, if they are coded alike, and in codes that a kernel here multiplies."""
    parts = stored.parts
    first = parts[0]
    if first.kind in OF_NUMBERS:
        return None
    if len(parts) == 1:
        return first
    alike = {(part.kind, part.group_size, part.activations) for part in parts}
    if len(alike) > 1 or first.kind == "plain" or any(part.groups is not None for part in parts):
        return None
    # Blocks that a part ends in the middle of can't be stacked: each output gets its scale.
    stackable = all(p.block_rows == first.block_rows and p.outputs % p.block_rows == 0 for p in parts)
    scales = [p.scales if stackable else p.scales.repeat_interleave(p.block_rows, 0)[: p.outputs] for p in parts]
    zeros = None
    if any(part.zeros is not None for part in parts):
        centre = 8 if first.kind == "int4" else 0
        shapes = [(p.outputs, s.shape[1]) for p, s in zip(parts, scales, strict=True)]
        made = (torch.full(shape, centre, dtype=torch.int16) for shape in shapes)
        zeros = torch.cat([m if p.zeros is None else p.zeros.expand(m.shape) for p, m in zip(parts, made, strict=True)])
    return StoredPart(
        name=first.name,
        kind=first.kind,
        outputs=sum(part.outputs for part in parts),
        inputs=first.inputs,
        codes=_stacked([part.codes for part in parts]),
        scales=torch.cat(scales),
        zeros=zeros,
        group_size=first.group_size,
        block_rows=first.block_rows if stackable else 1,
        activations=first.activations,
    )


def _stacked(codes: list[torch.Tensor]) -> torch.Tensor:
    """As bytes: torch joins no e4m3 everywhere."""
    return torch.cat([each.view(torch.uint8) for each in codes]).view(codes[0].dtype)


def per_output(stored: StoredLinear) -> tuple[torch.Tensor, torch.Tensor] | None:
    """int8 codes with one scale for each output, and no zeros; None where they aren't so."""
    parts = stored.parts
    if any(p.kind != "int8" or p.zeros is not None or p.scales.shape[1] != 1 for p in parts):
        return None
    scales = [p.scales.float().repeat_interleave(p.block_rows, 0)[: p.outputs, 0] for p in parts]
    return torch.cat([p.codes for p in parts]), torch.cat(scales)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
