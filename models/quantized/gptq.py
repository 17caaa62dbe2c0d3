"""GPTQ: codes of 4 or 8 bits along the inputs, with scales and zeros by groups of inputs.

    qweight [K·bits/32, N]   qzeros [G, N·bits/32]   scales [G, N]   g_idx [K]: the group of each input

The older format ("gptq") stores each zero less one, within its bits: a zero of 0 stands there as all ones. The newer
("gptq_v2") stores it as it is.
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


class Gptq:
    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._bits: int = one_of(fields, "bits", (4, 8))
        self._group_size = group_size_of(fields)
        self.in_any_order: bool = one_of(fields, "desc_act", (False, True), False)
        one_of(fields, "sym", (False, True), True)
        one_of(fields, "pack_dtype", ("int32",), "int32")
        one_of(fields, "is_marlin_format", (False,), False)
        stored = one_of(fields, "checkpoint_format", ("gptq", "gptq_v2"), fields.get("format") or "gptq")
        self._added = 1 if stored == "gptq" else 0
        _refuse_other_bits(fields)
        self._left_out = names_of(fields, "modules_to_not_convert")
        groups = f"groups of {self._group_size}" if self._group_size else "one group a row"
        self.told = f"{stored} int{self._bits}, {groups}"

    def layout(self, matrix: Matrix, headers: Mapping[str, TensorHeader]) -> Layout | None:
        name = matrix.name
        if not is_quantised(name, headers, _TENSORS, self._left_out, "modules_to_not_convert"):
            return None
        groups, in_word = groups_of(matrix, self._group_size), 32 // self._bits
        packed = divides(matrix, "inputs", matrix.inputs, in_word)
        zeros = divides(matrix, "outputs", matrix.outputs, in_word)
        layout = {
            "qweight": WantedFormat(f"{name}.qweight", ((packed, matrix.outputs),), ("I32",)),
            "qzeros": WantedFormat(f"{name}.qzeros", ((groups, zeros),), ("I32",)),
            "scales": WantedFormat(f"{name}.scales", ((groups, matrix.outputs),), FLOATS),
        }
        if self.in_any_order or f"{name}.g_idx" in headers:
            layout["g_idx"] = WantedFormat(f"{name}.g_idx", ((matrix.inputs,),), ("I32", "I64"))
        return layout

    def grain(self, matrix: Matrix) -> tuple[int, int]:
        in_word = 32 // self._bits
        return in_word, math.lcm(in_word, self._group_size or in_word)

    def build(self, matrix: Matrix, tensors: dict[str, torch.Tensor]) -> StoredPart:
        from models.quantized.codes import KIND, bytes_of, codes_of, finite, groups_from, signed, zeros_of
        from models.quantized.stored import StoredPart

        bits = self._bits
        packed = bytes_of(tensors["qweight"].T)
        zeros = (codes_of(tensors["qzeros"], bits) + self._added) & ((1 << bits) - 1)
        groups = len(zeros)
        return StoredPart(
            matrix.name,
            KIND[bits],
            matrix.outputs,
            matrix.inputs,
            codes=packed if bits == 4 else signed(packed),
            scales=finite(matrix, "scales", tensors["scales"].T.contiguous()),
            zeros=zeros_of(zeros.T, bits),
            groups=groups_from(matrix, tensors.get("g_idx"), self._group_size, groups),
            group_size=matrix.inputs // groups,
        )


def _refuse_other_bits(fields: Mapping[str, Any]) -> None:
    """`dynamic` gives some modules settings of their own; those it only leaves out are seen by their tensors."""
    dynamic = fields.get("dynamic") or {}
    if not isinstance(dynamic, dict) or not all(pattern.startswith("-:") for pattern in dynamic):
        raise refused("dynamic", dynamic, "modules that are left out (-:)")
