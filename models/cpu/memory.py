"""What a program's ops read and write between them: one set of buffers for all layers. Knows no ops.

Nothing is touched before it is written, so room for many rows costs what the largest step so far needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.linear.cpu import Rows

_LINE = 64


@dataclass(frozen=True, slots=True)
class Buffer:
    """Rows of `width` values, one behind the other, from a cache line on."""

    memory: torch.Tensor
    address: int
    width: int
    dtype: torch.dtype
    scales: torch.Tensor | None = None  # of bytes: float32, one a row

    @classmethod
    def of(cls, rows: int, width: int, dtype: torch.dtype) -> Buffer:
        memory = torch.empty(rows * width * dtype.itemsize + _LINE, dtype=torch.uint8)
        scales = torch.empty(rows) if dtype == torch.uint8 else None
        return cls(memory, -(-memory.data_ptr() // _LINE) * _LINE, width, dtype, scales)

    @property
    def stride(self) -> int:
        return self.width * self.dtype.itemsize

    @property
    def rows(self) -> Rows:
        return Rows(self.address, self.stride, 0 if self.scales is None else self.scales.data_ptr())

    def view(self, rows: int) -> torch.Tensor:
        """The first rows as a tensor [rows, width]; it changes with the next step."""
        start = self.address - self.memory.data_ptr()
        return self.memory[start : start + rows * self.stride].view(self.dtype).view(rows, self.width)
