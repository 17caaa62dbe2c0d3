"""The weights of a layer's experts on a GPU: one stack for each of their two linears, in the codes they are stored in
where all experts are coded alike, else dense.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.gemm.ending import interleaved
from kernels.moe.coded import CodedExperts
from kernels.quant.fused import halves_apart
from kernels.quant.reference import quantize_rows
from models.gpu.linears import one_part, per_output
from models.gpu.place import Place
from models.quantized.stored import CENTRE, StoredPart
from models.spec import Linear


def stack(linears: Sequence[Linear], place: Place, gates: bool = False) -> torch.Tensor | CodedExperts:
    """[E, N, K], filled one by one: at no time are there two copies of all. `gates`: of gates and ups, put by turns."""
    first = _part(linears[0], place, gates)
    if first is not None:
        coded = _Stack(first, len(linears), place)
        if all(coded.put(index, _part(linear, place, gates)) for index, linear in enumerate(linears)):
            return coded.made()
    shape = (len(linears), linears[0].outputs, linears[0].inputs)
    whole = torch.empty(shape, dtype=place.dtype, device=place.device)
    for part, linear in zip(whole, linears, strict=True):
        weight = place.weights.linear(linear).dense(place.dtype)
        part.copy_(interleaved(weight) if gates else weight)
    return whole


def stacked_biases(linears: Sequence[Linear], place: Place, gates: bool = False) -> torch.Tensor:
    """[E, N] float32."""
    biases = [place.weights.linear(linear).bias(torch.float32) for linear in linears]
    stacked = torch.stack([bias for bias in biases if bias is not None]).to(place.device)
    return interleaved(stacked, 1) if gates else stacked


def how(weight: torch.Tensor | CodedExperts) -> str:
    """How experts multiply, for the executor's path."""
    if isinstance(weight, torch.Tensor):
        return f"{str(weight.dtype).removeprefix('torch.')} experts (Triton)"
    kind = {torch.int8: "int8", torch.uint8: "int4"}.get(weight.codes.dtype, "fp8")
    return f"experts of {kind} codes made dense on the way"


def _part(linear: Linear, place: Place, gates: bool) -> StoredPart | None:
    """The linear in codes; None: it is to be dense."""
    part = _as_stored(linear, place)
    return part.rows(interleaved(torch.arange(part.outputs))) if part and gates else part


def _as_stored(linear: Linear, place: Place) -> StoredPart | None:
    stored = place.weights.linear(linear)
    if place.options.dtype == "int8":
        # As in all linears; what experts read stays as it is, because the same row goes to many of them.
        codes, scales = per_output(stored) or quantize_rows(stored.dense(torch.float32))
        return StoredPart(
            "", "int8", linear.outputs, linear.inputs, codes, scales.view(-1, 1), group_size=linear.inputs
        )
    part = one_part(stored)
    return None if part is None or part.kind == "plain" else part


class _Stack:
    def __init__(self, first: StoredPart, experts: int, place: Place) -> None:
        assert first.scales is not None
        self._first, self._device, self._experts, self._dtype = first, place.device, experts, place.dtype
        device, codes = place.device, self._as_read(first)
        self._codes = torch.empty(experts, *codes.shape, dtype=codes.dtype, device=device)
        self._scales = torch.empty(experts, *first.scales.shape, dtype=first.scales.dtype, device=device)
        self._zeros: torch.Tensor | None = None
        self._groups: torch.Tensor | None = None
        if first.groups is not None:
            self._groups = torch.empty(experts, first.inputs, dtype=torch.int32, device=device)

    def put(self, index: int, part: StoredPart | None) -> bool:
        """Whether it is coded as the first one is, and so in its place."""
        first = self._first
        if part is None or part.scales is None or (part.groups is None) != (self._groups is None):
            return False
        if (part.kind, part.group_size, part.block_rows) != (first.kind, first.group_size, first.block_rows):
            return False
        # As bytes: torch copies no e4m3 everywhere.
        self._codes[index].view(torch.uint8).copy_(self._as_read(part).view(torch.uint8))
        self._scales[index].copy_(part.scales)
        if part.zeros is not None:
            if self._zeros is None:
                shape = (self._experts, part.outputs, part.scales.shape[1])
                self._zeros = torch.full(shape, CENTRE[part.kind], dtype=torch.int16, device=self._device)
            self._zeros[index].copy_(part.zeros)
        if part.groups is not None and self._groups is not None:
            self._groups[index].copy_(part.groups)
        return True

    def _as_read(self, part: StoredPart) -> torch.Tensor:
        return halves_apart(part.codes, part.inputs, 0 if part.groups is not None else part.group_size, self._dtype)

    def made(self) -> CodedExperts:
        first = self._first
        return CodedExperts(
            self._codes, self._scales, self._zeros, self._groups, first.inputs, first.group_size, first.block_rows
        )
