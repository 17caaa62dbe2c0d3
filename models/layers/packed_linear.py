"""Linear layers on CPU whose rows have the same bits in any batch.

A library picks another kernel for another number of rows, and with it another order of summation: on one
machine 1 row differs from 2, on another 64 from 32. So each shape is tried out once, at load, and only row
counts that agree with each other are used: fewer rows are padded (the buffers behind inputs have room), more
are cut into pieces. The weights are packed once for oneDNN where it is there.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

# Tried against each other at load. Between neighbours the library doesn't change kernels without a tail that
# is among them; tests walk all counts.
_TRIED = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64)
_TRIED_WIDE = (96, 128, 256)
_COMMON = 16
# Outputs wider than this (the vocabulary) are tried on fewer rows: only wanted rows go through them.
_WIDE_OUTPUT = 16384
_WIDE_ROWS = 64
MAX_PADDED_ROWS = _COMMON


@dataclass(frozen=True, slots=True)
class RowRange:
    """Row counts from `low` to `high` give a row the same bits."""

    low: int
    high: int


class PackedLinear:
    """y = x · Wᵀ + b. Inputs are buffers with at least `MAX_PADDED_ROWS` rows, of which `rows` count."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.outputs, self.inputs = weight.shape
        self._dtype = weight.dtype
        self._bias = bias
        self._packed = can_pack(weight.dtype)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None) if self._packed else weight
        self.range = RowRange(1, 1 << 30)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return torch.nn.functional.linear(x, self._weight, self._bias)

    def find_range(self) -> RowRange:
        """Try the row counts and keep the longest run around `_COMMON` that agrees to the bit."""
        counts = _TRIED if self.outputs > _WIDE_OUTPUT else _TRIED + _TRIED_WIDE
        probe, x = self._probe(_WIDE_ROWS if self.outputs > _WIDE_OUTPUT else counts[-1])
        expected = _in_pieces(probe, x, _COMMON)
        agree = set()
        for n in counts:
            found = _in_pieces(probe, x[: max(n, 2 * _COMMON)], n)
            if torch.equal(found, expected[: len(found)]):
                agree.add(n)
        self.range = _run_around_common(counts, agree)
        return self.range

    def _probe(self, rows: int) -> tuple[PackedLinear, torch.Tensor]:
        """A linear of this shape and inputs for it whose outputs are nothing but rounding errors.

        Every product is met by its negative somewhere else, so the exact result is 0, and what comes out shows
        the order of summation. With ordinary numbers, rounding to bfloat16 hides nearly all differences.
        """
        generator = torch.Generator().manual_seed(0)
        half = self.inputs // 2
        kinds = min(self.outputs, 512)
        weight = torch.randn(kinds, half, generator=generator)
        weight = torch.cat([weight, -weight, torch.zeros(kinds, self.inputs - 2 * half)], dim=1)
        x = torch.randn(rows, half, generator=generator)
        x = torch.cat([x, x, torch.zeros(rows, self.inputs - 2 * half)], dim=1)
        order = torch.randperm(self.inputs, generator=generator)
        weight = weight[:, order].to(self._dtype).repeat(-(-self.outputs // kinds), 1)[: self.outputs]
        return PackedLinear(weight.contiguous(), None), x[:, order].to(self._dtype)


def _in_pieces(linear: PackedLinear, x: torch.Tensor, rows: int) -> torch.Tensor:
    """x through the linear `rows` at a time; what doesn't fill a last piece is left out."""
    whole = len(x) // rows * rows
    return torch.cat([linear(piece) for piece in x[:whole].split(rows)])


def _run_around_common(counts: tuple[int, ...], agree: set[int]) -> RowRange:
    below = max((n for n in counts if n < _COMMON and n not in agree), default=0)
    above = min((n for n in counts if n > _COMMON and n not in agree), default=1 << 30)
    inside = [n for n in counts if below < n < above]
    return RowRange(min(inside), max(inside))


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN is in this torch, and fast for the dtype on this CPU."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def common_range(linears: list[PackedLinear]) -> RowRange:
    """The row counts good for all: each distinct shape is tried once."""
    shapes = {(linear.inputs, linear.outputs): linear for linear in linears}
    ranges = [linear.find_range() for linear in shapes.values()]
    return RowRange(max(r.low for r in ranges), min(r.high for r in ranges))
