"""nvfp4: codes of 4 bits that stand for numbers, an e4m3 scale for 16 inputs of an output, and one for all of a matrix.

    ModelOpt         weight [N, K/2] bytes          weight_scale [N, K/16]   weight_scale_2 [] or [1]
    llm-compressor   weight_packed [N, K/2] bytes   weight_scale [N, K/16]   weight_global_scale [] or [1]: its inverse

Two codes a byte, that of the even input low. What activations would be rounded to (input_scale) isn't used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from models.quantized.format import Layout, Matrix, WantedFormat, divides, one_of, refused
from models.quantized.fp8 import ONE
from models.quantized.names import is_quantised, names_of
from models.tensor_headers import TensorHeader

if TYPE_CHECKING:
    import torch

    from models.quantized.stored import StoredPart

GROUP = 16
# In llm-compressor's config.json, the format.
PACKED = "nvfp4-pack-quantized"


class Nvfp4:
    told = f"nvfp4, groups of {GROUP}"
    # No executor multiplies these codes: they are made dense.
    multiplied = False

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._packed = fields.get("quant_method") != "modelopt"
        if self._packed:
            _check_groups(fields.get("config_groups"))
        else:
            one_of(fields, "quant_algo", ("NVFP4",))
            one_of(fields, "group_size", (GROUP,), GROUP)
        self._left_out = names_of(fields, "ignore", patterns=True)
        self._codes, self._whole = (
            ("weight_packed", "weight_global_scale") if self._packed else ("weight", "weight_scale_2")
        )

    def layout(self, matrix: Matrix, headers: Mapping[str, TensorHeader]) -> Layout | None:
        name, n = matrix.name, matrix.outputs
        by = ("weight_scale", self._whole)
        if not is_quantised(name, headers, by, self._left_out, "ignore"):
            return None
        groups = divides(matrix, "inputs", matrix.inputs, GROUP)
        return {
            "codes": WantedFormat(f"{name}.{self._codes}", ((n, matrix.inputs // 2),), ("U8",)),
            "scale": WantedFormat(f"{name}.weight_scale", ((n, groups),), ("F8_E4M3",)),
            "whole": WantedFormat(f"{name}.{self._whole}", ONE, ("F32",)),
        }

    def grain(self, matrix: Matrix) -> tuple[int, int]:
        return 1, GROUP

    def build(self, matrix: Matrix, tensors: dict[str, torch.Tensor]) -> StoredPart:
        from models.quantized.codes import finite
        from models.quantized.stored import StoredPart

        whole, scales = tensors["whole"].view(()), tensors["scale"].float()
        scales = scales / whole if self._packed else scales * whole
        return StoredPart(
            matrix.name,
            "nvfp4",
            matrix.outputs,
            matrix.inputs,
            codes=tensors["codes"],
            scales=finite(matrix, "weight_scale", scales),
            group_size=GROUP,
        )


def _check_groups(groups: Any) -> None:
    if not isinstance(groups, dict) or not groups:
        raise refused("config_groups", groups, "groups with targets and weights")
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            raise refused(f"config_groups.{name}", group, "a group with targets and weights")
        flat = {f"config_groups.{name}.weights.{key}": value for key, value in weights.items()}
        for key, only in (("num_bits", 4), ("type", "float"), ("group_size", GROUP), ("symmetric", True)):
            one_of(flat, f"config_groups.{name}.weights.{key}", (only,), only)
        if group.get("format", PACKED) not in (None, PACKED):
            raise refused(f"config_groups.{name}.format", group["format"], PACKED)
