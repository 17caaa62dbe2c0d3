"""No format: every matrix is `name`.weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.errors import ModelError
from models.quantized.format import Layout, Matrix
from models.tensor_headers import TensorHeader


class Plain:
    told = "not quantised"

    def layout(self, matrix: Matrix, headers: Mapping[str, TensorHeader]) -> Layout | None:
        for other in ("qweight", "weight_packed", "weight_scale", "weight_scale_inv"):
            if f"{matrix.name}.{other}" in headers:
                raise ModelError(
                    f"tensor {matrix.name}.{other} is quantised, and config.json has no quantization_config",
                    "take the config.json that came with these weights",
                )
        return None

    def grain(self, matrix: Matrix) -> tuple[int, int]:
        return 1, 1

    def build(self, matrix: Matrix, tensors: dict[str, Any]) -> Any:
        raise AssertionError("what isn't quantised is built by models/weights.py")
