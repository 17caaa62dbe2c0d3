"""Where a network is put: device and dtype, and what its layers share. Knows nothing of steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from kernels.launch import architecture
from models.executor import Options
from models.layers.rope import rope_tables
from models.spec import Linear, Norm, Rope
from models.weights import Weights, norm_weight

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "int8": torch.bfloat16}


def kept_dtype(options: Options) -> torch.dtype:
    """Of keys and values in pages; bytes are e4m3."""
    return torch.uint8 if options.kv_dtype == "fp8" else DTYPES[options.dtype]


@dataclass(slots=True)
class Place:
    weights: Weights
    options: Options
    device: torch.device
    _shared: dict[Any, Any] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        """Of what linears read; int8 is for the linears alone."""
        return DTYPES[self.options.dtype]

    @property
    def arch(self) -> int:
        """90 for compute capability 9.0."""
        return architecture(self.device)

    def norm(self, spec: Norm) -> torch.Tensor:
        return norm_weight(spec, self.weights).to(self.device)

    def dense(self, spec: Linear, dtype: torch.dtype | None = None) -> torch.Tensor:  # [N, K]
        return self.weights.linear(spec).dense(dtype or self.dtype).to(self.device).contiguous()

    def rope(self, spec: Rope) -> tuple[torch.Tensor, torch.Tensor]:
        """cos, sin [positions, width/2] float32, one pair for all layers that turn alike."""
        if spec not in self._shared:
            tables = rope_tables(spec, self.options.max_context)
            self._shared[spec] = tuple(table.to(self.device).contiguous() for table in tables)
        return self._shared[spec]
