"""AWQ in its GEMM packing: codes of 4 bits along the outputs, with scales and zeros by groups of inputs.

    qweight [K, N/8]   qzeros [G, N/8]   scales [G, N]

The eight codes of a word belong to outputs 0, 2, 4, 6, 1, 3, 5, 7, lowest bits first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from models.quantized.format import (
    FLOATS,
    Layout,
    Matrix,
    WantedFormat,
    divides,
    group_size_of,
    groups_of,
    one_of,
    refused,
)
from models.quantized.names import is_quantised, names_of
from models.tensor_headers import TensorHeader

if TYPE_CHECKING:
    import torch

    from models.quantized.stored import StoredPart

_TENSORS = ("qweight", "qzeros", "scales")
# Where output 0, 1 … 7 stands in a word.
_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]


class Awq:
    def __init__(self, fields: Mapping[str, Any]) -> None:
        one_of(fields, "bits", (4,), fields.get("w_bit"))
        one_of(fields, "zero_point", (True,), True)
        version = fields.get("version", "gemm")
        if not isinstance(version, str) or version.lower() != "gemm":
            raise refused("version", version, "gemm")
        self._group_size = group_size_of(fields, "group_size" if "group_size" in fields else "q_group_size")
        self._left_out = names_of(fields, "modules_to_not_convert")
        self.told = f"awq int4, groups of {self._group_size}" if self._group_size else "awq int4, one group a row"

    def layout(self, matrix: Matrix, headers: Mapping[str, TensorHeader]) -> Layout | None:
        name = matrix.name
        if not is_quantised(name, headers, _TENSORS, self._left_out, "modules_to_not_convert"):
            return None
        groups, packed = groups_of(matrix, self._group_size), divides(matrix, "outputs", matrix.outputs, 8)
        divides(matrix, "inputs", matrix.inputs, 2)
        return {
            "qweight": WantedFormat(f"{name}.qweight", ((matrix.inputs, packed),), ("I32",)),
            "qzeros": WantedFormat(f"{name}.qzeros", ((groups, packed),), ("I32",)),
            "scales": WantedFormat(f"{name}.scales", ((groups, matrix.outputs),), FLOATS),
        }

    def grain(self, matrix: Matrix) -> tuple[int, int]:
        return 8, math.lcm(2, self._group_size or 2)

    def build(self, matrix: Matrix, tensors: dict[str, torch.Tensor]) -> StoredPart:
        from models.quantized.codes import finite, in_pairs, zeros_of
        from models.quantized.stored import StoredPart

        scales = tensors["scales"].T.contiguous()
        return StoredPart(
            matrix.name,
            "int4",
            matrix.outputs,
            matrix.inputs,
            codes=in_pairs(_by_outputs(tensors["qweight"])),
            scales=finite(matrix, "scales", scales),
            zeros=zeros_of(_by_outputs(tensors["qzeros"]), 4),
            group_size=matrix.inputs // scales.shape[1],
        )


def _by_outputs(words: torch.Tensor) -> torch.Tensor:  # [R, N/8] int32 -> [N, R] uint8
    from models.quantized.codes import codes_of

    stored = codes_of(words, 4).view(len(words), -1, 8)
    return stored[:, :, _PLACES].reshape(len(words), -1).T.contiguous()
