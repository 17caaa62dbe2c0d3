"""A linear as it is stored, in one form whatever the format it came in.

    W[n, k] = (codes[n, k] − zeros[n, g]) · scales[n // block_rows, g]        g = groups[k], or k // group_size

and where codes stand for numbers, in nvfp4 and in mxfp4, whose scales are exponents,

    W[n, k] = number(codes[n, k]) · scales[n, g]                  g = k // 16
    W[n, k] = number(codes[n, k]) · 2^(scales[n, g] − 127)        g = k // 32

Executors take `dense`, or, where they have a kernel for a part's kind, the codes and scales themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

# The code that stands for zero where a part has no zeros of its own.
CENTRE = {"int8": 0, "fp8": 0, "int4": 8, "mxfp4": 0, "nvfp4": 0}
OF_NUMBERS = ("mxfp4", "nvfp4")
_IN_PAIRS = ("int4", *OF_NUMBERS)
# What their codes 0 to 15 stand for.
_HALF = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NUMBERS = torch.tensor([*_HALF, *(-number for number in _HALF)])
# Rows made dense at a time: their float32 values are all the extra memory it takes.
_ROWS = 1024


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One matrix. `kind` says what `codes` holds:

    plain  the weight itself, [N, K] in float32, float16 or bfloat16
    int8   [N, K] int8
    fp8    [N, K] float8_e4m3fn
    int4   [N, K/2 rounded up] uint8: codes 0..15, the even column in the low half of a byte
    mxfp4  [N, K/2] uint8, as int4; scales are uint8
    nvfp4  [N, K/2] uint8, as int4; scales are float32
    """

    name: str
    kind: str
    outputs: int
    inputs: int
    codes: torch.Tensor
    scales: torch.Tensor | None = None  # [N / block_rows rounded up, groups]
    zeros: torch.Tensor | None = None  # [N, groups] int16; None: CENTRE everywhere
    groups: torch.Tensor | None = None  # [K] int32, where groups aren't neighbours
    group_size: int = 0  # inputs of a group
    block_rows: int = 1
    # How its maker quantised what it is multiplied with: "" not at all, "row" with a scale of each row's own,
    # "tensor" with `input_scale`, where the file has one. An executor may, and need not, do the same.
    activations: str = ""
    input_scale: torch.Tensor | None = None  # [] float32

    def rows(self, ids: torch.Tensor) -> StoredPart:
        """Some outputs, in this order."""
        return replace(
            self,
            outputs=len(ids),
            codes=self.codes[ids],
            scales=None if self.scales is None else self.scales[ids // self.block_rows],
            zeros=None if self.zeros is None else self.zeros[ids],
            block_rows=1,
        )

    def share(self, rows: range, columns: range) -> StoredPart:
        """Some neighbouring outputs and inputs."""
        part = self if len(rows) == self.outputs else self._some_outputs(rows)
        return part if len(columns) == self.inputs else part._some_inputs(columns)

    def _some_outputs(self, rows: range) -> StoredPart:
        first, end, step = rows.start, rows.stop, self.block_rows
        if first % step:
            return self.rows(torch.arange(first, end))
        return replace(
            self,
            outputs=len(rows),
            codes=self.codes[first:end],
            scales=None if self.scales is None else self.scales[first // step : -(-end // step)],
            zeros=None if self.zeros is None else self.zeros[first:end],
        )

    def _some_inputs(self, columns: range) -> StoredPart:
        first, end, count = columns.start, columns.stop, len(columns)
        in_pairs = self.kind in _IN_PAIRS
        assert not in_pairs or first % 2 == 0
        codes = self.codes[:, first // 2 : -(-end // 2)] if in_pairs else self.codes[:, first:end]
        if self.groups is not None:
            return replace(self, inputs=count, codes=codes, groups=self.groups[first:end])
        if self.scales is None or self.scales.shape[1] == 1:
            return replace(self, inputs=count, codes=codes, group_size=min(self.group_size, count))
        begun, ended = first // self.group_size, -(-end // self.group_size)
        groups = None
        if first % self.group_size:
            # The first group is not whole: which group an input belongs to is said for each.
            groups = (torch.arange(first, end) // self.group_size - begun).to(torch.int32)
        zeros = None if self.zeros is None else self.zeros[:, begun:ended]
        scales = self.scales[:, begun:ended]
        return replace(self, inputs=count, codes=codes, scales=scales, zeros=zeros, groups=groups)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:  # [N, K]
        if self.kind == "plain":
            return self.codes.to(dtype)
        made = torch.empty(self.outputs, self.inputs, dtype=dtype)
        self.dense_into(made)
        return made

    def dense_into(self, made: torch.Tensor) -> None:
        """Computed in float32 and rounded once."""
        if self.kind == "plain":
            made.copy_(self.codes)
            return
        for first, last in _ranges(self.outputs, _ROWS):
            codes = self._float_codes(first, last)
            if self.zeros is not None:
                codes -= self._over_inputs(self.zeros[first:last].float())
            elif CENTRE[self.kind]:
                codes -= CENTRE[self.kind]
            rows = torch.arange(first, last) // self.block_rows
            scales = self.scales.float()[rows]
            if self.kind == "mxfp4":
                scales = torch.exp2(scales - 127)
            made[first:last] = codes.mul_(self._over_inputs(scales))

    def _float_codes(self, first: int, last: int) -> torch.Tensor:
        codes = self.codes[first:last]
        if self.kind in _IN_PAIRS:
            codes = torch.stack((codes & 15, codes >> 4), dim=-1).view(last - first, -1)[:, : self.inputs]
        return _NUMBERS[codes.int()] if self.kind in OF_NUMBERS else codes.float()

    def _over_inputs(self, of_groups: torch.Tensor) -> torch.Tensor:
        """[n, groups] -> [n, K], or [n, 1] where there is but one."""
        if of_groups.shape[1] == 1:
            return of_groups
        if self.groups is not None:
            return of_groups[:, self.groups.long()]
        return of_groups.repeat_interleave(self.group_size, dim=1)[:, : self.inputs]


@dataclass(frozen=True, slots=True)
class StoredLinear:
    """Parts whose outputs stand side by side."""

    parts: tuple[StoredPart, ...]
    biases: tuple[torch.Tensor, ...] = ()

    @property
    def numbers(self) -> int:
        """How many numbers the linear has, however they are coded."""
        return sum(part.outputs * part.inputs for part in self.parts) + sum(bias.numel() for bias in self.biases)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """[N, K]; a part that is alone and stored so comes as it is mapped."""
        if len(self.parts) == 1:
            return self.parts[0].dense(dtype)
        made = torch.empty(sum(part.outputs for part in self.parts), self.parts[0].inputs, dtype=dtype)
        first = 0
        for part in self.parts:
            part.dense_into(made[first : first + part.outputs])
            first += part.outputs
        return made

    def bias(self, dtype: torch.dtype) -> torch.Tensor | None:
        return torch.cat([bias.to(dtype) for bias in self.biases]) if self.biases else None


def _ranges(count: int, step: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, step):
        yield first, min(first + step, count)
