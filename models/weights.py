"""Weights of a Hugging Face folder: tensors by name, mapped from safetensors files, shapes and types checked.

`take` gives a tensor as it is stored, `linear` the stacked weight of a linear in whatever format the model ships
it (models/quantized/). Knows no families and no executors.

Values are not looked through for infinities and NaN, which would read every byte of a mapped model before the
first token: such weights give such logits. Scales of quantised weights, being few, are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from models import spec
from models.errors import ModelError
from models.folder_headers import OTHER_MODEL, FolderHeaders
from models.quantized.format import FLOATS, Matrix, Wanted
from models.quantized.stored import StoredLinear, StoredPart


class Weights:
    """Maps the files; pages are read when a tensor's values are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._headers = FolderHeaders(folder)
        self._files = {path: _mapped(path) for path in dict.fromkeys(self._headers.file_of.values())}

    @property
    def format(self) -> str:
        """How the linears are stored, in a few words."""
        return self._headers.format.told

    def __contains__(self, name: str) -> bool:
        return name in self._headers.tensors

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor as it is stored. Raises `ModelError` when it is missing, of another shape or no float."""
        return self._get(Wanted(name, (shape,), FLOATS))

    def take_ids(self, name: str, count: int) -> torch.Tensor:
        """A tensor of `count` int64. Raises `ModelError`."""
        return self._get(Wanted(name, ((count,),), ("I64",)))

    def linear(self, linear: spec.Linear) -> StoredLinear:
        """The weights of all parts. Raises `ModelError` that names the tensor or the field that is wrong."""
        parts = tuple(self._part(Matrix(part.name, part.outputs, linear.inputs)) for part in linear.parts)
        if linear.bias:
            return StoredLinear(parts, tuple(self.take(f"{part.name}.bias", part.outputs) for part in parts))
        self._refuse_biases(linear)
        return StoredLinear(parts)

    def coded_bytes(self, linear: spec.Linear) -> int:
        """As FolderHeaders."""
        return self._headers.coded_bytes(linear)

    def number_bytes(self, name: str) -> int:
        return self._headers.number_bytes(name)

    def _get(self, wanted: Wanted) -> torch.Tensor:
        self._headers.check(wanted)
        tensor: torch.Tensor = self._values(wanted.name)
        return tensor

    def _values(self, name: str) -> Any:
        path = self._headers.file_of[name]
        try:
            return self._files[path].get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path}: tensor {name} cannot be read: {error}", "fetch the file again") from error

    def _part(self, matrix: Matrix) -> StoredPart:
        is_quantised, layout = self._headers.layout(matrix)
        tensors = {key: self._get(wanted) for key, wanted in layout.items()}
        if not is_quantised:
            return StoredPart(matrix.name, "plain", matrix.outputs, matrix.inputs, tensors["weight"])
        try:
            return self._headers.format.build(matrix, tensors)
        except ModelError as error:
            raise ModelError(f"{self.folder}: {error.what}", error.fix) from error

    def _refuse_biases(self, linear: spec.Linear) -> None:
        """Some converters write biases of zeros where a family has none; others would change the text."""
        for name in (f"{part.name}.bias" for part in linear.parts):
            if name in self and bool(self._values(name).any()):
                raise ModelError(f"{self.folder}: tensor {name} is there, and config.json asks for none", OTHER_MODEL)


def _mapped(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read: {error}", "fetch the file again") from error
