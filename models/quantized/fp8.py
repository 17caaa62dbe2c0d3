"""fp8 as DeepSeek-V3 and Qwen3-FP8 ship it, with a scale for each block of a weight, or with one for all of it.

    weight [N, K] float8_e4m3fn   weight_scale_inv [N/128, K/128], rounded up: W = weight · scale
                            or    weight_scale [] or [1], input_scale [] or [1]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from models.errors import ModelError
from models.quantized.format import FLOATS, Layout, Matrix, WantedFormat, one_of, refused
from models.quantized.names import Names, names_of
from models.tensor_headers import TensorHeader

if TYPE_CHECKING:
    import torch

    from models.quantized.stored import StoredPart

ONE = ((), (1,), (1, 1))
SCALE_TYPES = (*FLOATS, "F8_E8M0")


class Fp8:
    def __init__(self, fields: Mapping[str, Any]) -> None:
        one_of(fields, "fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
        scheme = one_of(fields, "activation_scheme", ("dynamic", "static"), "dynamic")
        self._block = block_of(fields, "weight_block_size")
        self._activations = "tensor" if scheme == "static" else "row"
        self._field = next((name for name in ("ignored_layers", "modules_to_not_convert") if fields.get(name)), "")
        self._left_out = names_of(fields, self._field)
        self.told = f"fp8, blocks of {self._block[0]} × {self._block[1]}" if self._block else "fp8, a scale a tensor"

    def layout(self, matrix: Matrix, headers: Mapping[str, TensorHeader]) -> Layout | None:
        name = matrix.name
        if not is_coded(name, headers, ("weight_scale_inv", "weight_scale"), self._left_out, self._field):
            return None
        scale = f"{name}.weight_scale_inv"
        layout = {"weight": WantedFormat(f"{name}.weight", ((matrix.outputs, matrix.inputs),), ("F8_E4M3",))}
        if self._block:
            layout["scale"] = WantedFormat(scale, (blocks_of(matrix, self._block),), SCALE_TYPES)
            return layout
        scale = scale if scale in headers else f"{name}.weight_scale"
        layout["scale"] = WantedFormat(scale, ONE, SCALE_TYPES)
        if f"{name}.input_scale" in headers:
            layout["input_scale"] = WantedFormat(f"{name}.input_scale", ONE, SCALE_TYPES)
        return layout

    def grain(self, matrix: Matrix) -> tuple[int, int]:
        return self._block or (1, 1)

    def build(self, matrix: Matrix, tensors: dict[str, torch.Tensor]) -> StoredPart:
        from models.quantized.codes import finite
        from models.quantized.stored import StoredPart

        block = self._block or (matrix.outputs, matrix.inputs)
        scales = finite(matrix, "weight_scale", tensors["scale"].float())
        given = tensors.get("input_scale")
        return StoredPart(
            matrix.name,
            "fp8",
            matrix.outputs,
            matrix.inputs,
            codes=tensors["weight"],
            scales=scales if self._block else scales.view(1, 1),
            group_size=block[1],
            block_rows=block[0],
            activations=self._activations,
            input_scale=None if given is None else finite(matrix, "input_scale", given.float().view(())),
        )


def block_of(fields: Mapping[str, Any], field: str) -> tuple[int, int] | None:
    value = fields.get(field)
    if value is None:
        return None
    whole = isinstance(value, list) and all(type(each) is int and 1 <= each <= 1 << 20 for each in value)
    if not whole or len(value) != 2:
        raise refused(field, value, "two whole numbers, e.g. [128, 128]")
    return value[0], value[1]


def blocks_of(matrix: Matrix, block: tuple[int, int]) -> tuple[int, int]:
    return -(-matrix.outputs // block[0]), -(-matrix.inputs // block[1])


def is_coded(
    name: str, headers: Mapping[str, TensorHeader], scales: tuple[str, ...], left_out: Names, field: str
) -> bool:
    """Whether `name`.weight itself holds codes, as fp8 and int8 do: its type says it. A scale that belongs to a
    weight of floats, and codes that a list leaves out, are refused."""
    weight = headers.get(f"{name}.weight")
    if weight is None:
        return False
    if weight.dtype in FLOATS:
        scale = next((f"{name}.{each}" for each in scales if f"{name}.{each}" in headers), None)
        if scale is not None:
            raise ModelError(f"tensor {name}.weight is {weight.dtype}, and it has a scale ({scale})", "convert it anew")
        return False
    if name in left_out:
        raise ModelError(
            f"tensor {name}.weight is {weight.dtype}, and config.json's {field} leaves {name} out",
            "take the config.json that came with these weights",
        )
    return True
