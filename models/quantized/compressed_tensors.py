"""compressed-tensors, as llm-compressor writes it: groups of modules, each with a scheme of its own.

    int-quantized, float-quantized   weight [N, K] int8 or float8_e4m3fn
    pack-quantized                   weight_packed [N, K·bits/32] int32, codes along the inputs; weight_shape [2]
    all                              weight_scale: [1], [N, 1], [N, groups] or one for each block
                                     weight_zero_point where it isn't symmetric; weight_g_idx [K] where inputs
                                     were sorted into groups; input_scale where activations have a fixed one
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from models.errors import ModelError
from models.quantized.format import FLOATS, Layout, Matrix, WantedFormat, group_size_of, groups_of, one_of, refused
from models.quantized.fp8 import ONE, block_of, blocks_of, is_coded
from models.quantized.names import Names, is_quantised, names_of
from models.tensor_headers import TensorHeader

if TYPE_CHECKING:
    import torch

    from models.quantized.stored import StoredPart

_FORMATS = ("int-quantized", "float-quantized", "naive-quantized", "pack-quantized")


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the modules of a group are stored."""

    targets: Names
    every_linear: bool
    packed: bool
    kind: str
    bits: int
    strategy: str  # tensor, channel, group or block
    group_size: int
    block: tuple[int, int]
    symmetric: bool
    sorted_inputs: bool
    activations: str


class CompressedTensors:
    def __init__(self, fields: Mapping[str, Any]) -> None:
        one_of(fields, "quantization_status", ("compressed",), "compressed")
        for field in ("sparsity_config", "transform_config"):
            value = fields.get(field)
            if value and not (isinstance(value, dict) and value.get("format") == "dense"):
                raise refused(field, value, "none")
        groups = fields.get("config_groups")
        if not isinstance(groups, dict) or not groups:
            raise refused("config_groups", groups, "groups with targets and weights")
        self._schemes = [_scheme(name, group, fields) for name, group in groups.items()]
        self._left_out = names_of(fields, "ignore", patterns=True)
        self.told = "compressed-tensors " + ", ".join(dict.fromkeys(map(_told, self._schemes)))

    def layout(self, matrix: Matrix, headers: Mapping[str, TensorHeader]) -> Layout | None:
        scheme = self._scheme_of(matrix.name)
        if scheme is None:
            return None
        if scheme.packed:
            if not is_quantised(matrix.name, headers, ("weight_packed", "weight_scale"), self._left_out, "ignore"):
                return None
        elif not is_coded(matrix.name, headers, ("weight_scale",), self._left_out, "ignore"):
            return None
        return _layout(matrix, scheme, headers)

    def _scheme_of(self, name: str) -> Scheme | None:
        """Names and patterns go before the word for all linears; among equals the first."""
        named = next((scheme for scheme in self._schemes if name in scheme.targets), None)
        return named or next((scheme for scheme in self._schemes if scheme.every_linear), None)

    def grain(self, matrix: Matrix) -> tuple[int, int]:
        scheme = self._scheme_of(matrix.name)
        assert scheme is not None
        in_word = 32 // scheme.bits if scheme.packed else 1
        rows, columns = scheme.block if scheme.strategy == "block" else (1, scheme.group_size or 1)
        return math.lcm(in_word, rows), math.lcm(in_word, columns)

    def build(self, matrix: Matrix, tensors: dict[str, torch.Tensor]) -> StoredPart:
        from models.quantized.codes import finite, groups_from, over_groups
        from models.quantized.stored import StoredPart

        scheme = self._scheme_of(matrix.name)
        assert scheme is not None
        scales = over_groups(finite(matrix, "weight_scale", tensors["scale"]))
        block = {
            "tensor": (matrix.outputs, matrix.inputs),
            "channel": (1, matrix.inputs),
            "group": (1, matrix.inputs // scales.shape[1]),
            "block": scheme.block,
        }[scheme.strategy]
        given = tensors.get("input_scale")
        return StoredPart(
            matrix.name,
            scheme.kind,
            matrix.outputs,
            matrix.inputs,
            codes=_codes(matrix, scheme, tensors),
            scales=scales,
            zeros=_zeros(matrix, scheme, tensors.get("zeros")),
            groups=groups_from(matrix, tensors.get("g_idx"), block[1], scales.shape[1]),
            group_size=block[1],
            block_rows=block[0],
            activations=scheme.activations,
            input_scale=None if given is None else finite(matrix, "input_scale", given.float().view(())),
        )


# The config ----------------------------------------------------------------------------------------------


def _scheme(name: str, group: Any, fields: Mapping[str, Any]) -> Scheme:
    where = f"config_groups.{name}"
    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
        raise refused(where, group, "a group with targets and weights")
    # Fields are flat to those who refuse them: their names tell the way.
    flat = {f"{where}.{key}": value for key, value in group.items()}
    weights = {f"{where}.weights.{key}": value for key, value in group["weights"].items()}
    targets = group.get("targets")
    every_linear = isinstance(targets, list) and "Linear" in targets
    written = group.get("format") or fields.get("format")
    written = one_of({f"{where}.format": written}, f"{where}.format", _FORMATS)
    number_type = one_of(weights, f"{where}.weights.type", ("int", "float"), "int")
    packed = written == "pack-quantized"
    allowed = ((4, 8) if packed else (8,)) if number_type == "int" else (8,)
    bits = one_of(weights, f"{where}.weights.num_bits", allowed)
    if number_type == "float" and written in ("int-quantized", "pack-quantized"):
        raise refused(f"{where}.format", written, "float-quantized for floats")
    strategies = ("channel", "group") if packed else ("tensor", "channel", "group", "block")
    strategy = one_of(weights, f"{where}.weights.strategy", strategies, "tensor")
    one_of(weights, f"{where}.weights.dynamic", (False,), False)
    order = one_of(weights, f"{where}.weights.actorder", (None, "group", "weight", "static", "dynamic", True, False))
    symmetric = one_of(weights, f"{where}.weights.symmetric", (True, False), True)
    if number_type == "float" and not symmetric:
        raise refused(f"{where}.weights.symmetric", symmetric, "true for floats")
    block = block_of(weights, f"{where}.weights.block_structure")
    if strategy == "block" and (block is None or not symmetric):
        raise refused(f"{where}.weights.block_structure", block, "two numbers, and symmetric weights")
    return Scheme(
        targets=names_of(flat, f"{where}.targets", patterns=True),
        every_linear=every_linear,
        packed=packed,
        kind="fp8" if number_type == "float" else f"int{bits}",
        bits=bits,
        strategy=strategy,
        group_size=group_size_of(weights, f"{where}.weights.group_size") if strategy == "group" else 0,
        block=block or (1, 1),
        symmetric=symmetric,
        sorted_inputs=order in ("group", "dynamic", True) and strategy == "group",
        activations=_activations(group.get("input_activations")),
    )


def _activations(said: Any) -> str:
    if not isinstance(said, dict) or said.get("num_bits") != 8:
        return ""
    if said.get("dynamic"):
        return "row" if said.get("strategy") == "token" else ""
    return "tensor" if said.get("strategy", "tensor") == "tensor" else ""


def _told(scheme: Scheme) -> str:
    over = {"group": f"groups of {scheme.group_size}", "block": f"blocks of {scheme.block[0]} × {scheme.block[1]}"}
    return f"{scheme.kind} ({over.get(scheme.strategy, f'a scale a {scheme.strategy}')})"


# The tensors ---------------------------------------------------------------------------------------------


def _layout(matrix: Matrix, scheme: Scheme, headers: Mapping[str, TensorHeader]) -> Layout:
    name, n, k = matrix.name, matrix.outputs, matrix.inputs
    groups = groups_of(matrix, scheme.group_size) if scheme.strategy == "group" else 1
    over = {"tensor": ONE, "channel": ((n, 1), (n,)), "group": ((n, groups),)}
    scales = over.get(scheme.strategy) or (blocks_of(matrix, scheme.block),)
    layout = {"scale": WantedFormat(f"{name}.weight_scale", scales, FLOATS)}
    if scheme.packed:
        layout["packed"] = WantedFormat(f"{name}.weight_packed", ((n, -(-k * scheme.bits // 32)),), ("I32",))
        layout["shape"] = WantedFormat(f"{name}.weight_shape", ((2,),), ("I64", "I32"))
    else:
        layout["weight"] = WantedFormat(f"{name}.weight", ((n, k),), ("F8_E4M3" if scheme.kind == "fp8" else "I8",))
    if not scheme.symmetric:
        # Packed along the outputs; older writers left them as they are.
        packed = ((-(-n * scheme.bits // 32), groups),) if scheme.packed else ()
        types = ("I8", "I32") if packed else ("I8",)
        layout["zeros"] = WantedFormat(f"{name}.weight_zero_point", (*scales, *packed), types)
    if scheme.sorted_inputs:
        layout["g_idx"] = WantedFormat(f"{name}.weight_g_idx", ((k,),), ("I32", "I64"))
    if scheme.activations == "tensor" and f"{name}.input_scale" in headers:
        layout["input_scale"] = WantedFormat(f"{name}.input_scale", ONE, FLOATS)
    return layout


def _codes(matrix: Matrix, scheme: Scheme, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    from models.quantized.codes import bytes_of, signed

    if not scheme.packed:
        return tensors["weight"]
    if tensors["shape"].tolist() != [matrix.outputs, matrix.inputs]:
        told = f"{tensors['shape'].tolist()}, config.json asks for {[matrix.outputs, matrix.inputs]}"
        fix = "config.json and the weights belong to different models"
        raise ModelError(f"tensor {matrix.name}.weight_shape says {told}", fix)
    packed = bytes_of(tensors["packed"])
    if scheme.bits == 4:
        return packed[:, : (matrix.inputs + 1) // 2].contiguous()
    return signed(packed[:, : matrix.inputs].contiguous())


def _zeros(matrix: Matrix, scheme: Scheme, stored: torch.Tensor | None) -> torch.Tensor | None:
    from models.quantized.codes import codes_of, over_groups, zeros_of

    if stored is None:
        return None
    if stored.element_size() == 4:
        packed = codes_of(stored.T, scheme.bits).T  # [outputs, rounded up to words, groups]
        return zeros_of(packed[: matrix.outputs], scheme.bits)
    zeros = over_groups(stored).short() + (1 << (scheme.bits - 1))
    return zeros_of(zeros.expand(matrix.outputs, -1), scheme.bits)
