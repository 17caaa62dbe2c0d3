"""What a format is to models/weights.py, and what the formats share in saying what is wrong. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from models.errors import ModelError
from models.tensor_headers import TensorHeader

if TYPE_CHECKING:
    import torch

    from models.quantized.stored import StoredPart

FLOATS = ("BF16", "F16", "F32")


@dataclass(frozen=True, slots=True)
class Matrix:
    """The part of a linear that is asked for."""

    name: str
    outputs: int
    inputs: int


@dataclass(frozen=True, slots=True)
class WantedFormat:
    """A tensor that must be there. Shapes may be told in several ways ([1] and [] for one number)."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]


# What a matrix's tensors are to its format -> the tensor in the file.
Layout = dict[str, WantedFormat]


class Format(Protocol):
    # In a few words, for people: "gptq int4, groups of 128".
    told: str

    def layout(self, matrix: Matrix, headers: Mapping[str, TensorHeader]) -> Layout | None:
        """Which tensors hold the matrix; None: it isn't quantised. Raises `ModelError` where the config and
        the tensors that are there contradict each other."""
        ...

    def grain(self, matrix: Matrix) -> tuple[int, int]:
        """In steps of how many outputs, and of how many inputs, the matrix can be cut (models/quantized/share.py)."""
        ...

    def build(self, matrix: Matrix, tensors: dict[str, torch.Tensor]) -> StoredPart:
        """From the tensors that `layout` asked for; their shapes and types are as it said."""
        ...


def refused(field: str, value: Any, supported: str) -> ModelError:
    """A field of quantization_config that isn't computed here."""
    shown = repr(value)
    shown = shown if len(shown) <= 120 else shown[:120] + "…"
    return ModelError(f"config.json: quantization_config.{field} is {shown}", f"supported: {supported}")


def one_of(fields: Mapping[str, Any], field: str, allowed: tuple[Any, ...], default: Any = None) -> Any:
    """The field's value, or `default` for null; it must be one of `allowed`, in value and type."""
    value = fields.get(field)
    value = default if value is None else value
    if not any(value == each and type(value) is type(each) for each in allowed):
        raise refused(field, value, " or ".join(map(str, allowed)))
    return value


def group_size_of(fields: Mapping[str, Any], field: str = "group_size") -> int:
    """Inputs of a group; 0 where the file says that a row is one group."""
    value = fields.get(field)
    if value is None or value == -1:
        return 0
    if type(value) is not int or not 1 <= value <= 1 << 20:
        raise refused(field, value, "a whole number from 1 up, or -1")
    return value


def groups_of(matrix: Matrix, group_size: int) -> int:
    """How many groups a row has."""
    size = group_size or matrix.inputs
    if matrix.inputs % size:
        raise ModelError(
            f"{matrix.name} has {matrix.inputs} inputs, and group_size {size} does not divide them",
            "quantization_config and the weights belong to different models",
        )
    return matrix.inputs // size


def divides(matrix: Matrix, what: str, count: int, by: int) -> int:
    if count % by:
        raise ModelError(f"{matrix.name} has {count} {what}, no multiple of {by}", "such packing is not read")
    return count // by
