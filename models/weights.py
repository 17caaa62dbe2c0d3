"""Weights of a Hugging Face folder: tensors by name, mapped from safetensors files, shapes and types checked.

`take` gives a tensor as it is stored, `linear` the stacked weight of a linear in whatever format the model ships
it (models/quantized/). Knows no families and no executors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from models import spec
from models.errors import ModelError
from models.quantized.format import FLOATS, Layout, Matrix, Wanted
from models.quantized.registry import format_of
from models.quantized.stored import StoredLinear, StoredPart
from models.sources import read_json, weight_files
from models.tensor_headers import TensorHeader, read_headers

_OTHER_MODEL = "config.json and the weights belong to different models"


class Weights:
    """Maps the files; pages are read when a tensor's values are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.headers: dict[str, TensorHeader] = {}
        self._file_of: dict[str, Any] = {}
        config = folder / "config.json"
        self._format = format_of(read_json(config) if config.exists() else {})
        for path in weight_files(folder):
            self._add(path)

    @property
    def format(self) -> str:
        """How the linears are stored, in a few words."""
        return self._format.told

    def _add(self, path: Path) -> None:
        headers = read_headers(path)
        twice = next((name for name in headers if name in self.headers), None)
        if twice is not None:
            raise ModelError(f"{self.folder}: tensor {twice} is in more than one file", "fetch the folder again, whole")
        try:
            file = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path} cannot be read: {error}", "fetch the file again") from error
        self.headers.update(headers)
        self._file_of.update(dict.fromkeys(headers, file))

    def __contains__(self, name: str) -> bool:
        return name in self.headers

    # Tensors --------------------------------------------------------------------------------------------

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor as it is stored. Raises `ModelError` when it is missing, of another shape or no float."""
        return self._get(Wanted(name, (shape,), FLOATS))

    def _get(self, wanted: Wanted) -> torch.Tensor:
        self.check(wanted)
        tensor: torch.Tensor = self._file_of[wanted.name].get_tensor(wanted.name)
        return tensor

    def check(self, wanted: Wanted) -> None:
        """Whether the tensor is there and as it should be, by its header alone."""
        name, header = wanted.name, self.headers.get(wanted.name)
        if header is None:
            raise ModelError(f"{self.folder}: tensor {name} is missing", "fetch the folder again, whole")
        if header.shape not in wanted.shapes:
            asked = " or ".join(map(str, wanted.shapes))
            raise ModelError(
                f"{self.folder}: tensor {name} has shape {header.shape}, config.json asks for {asked}", _OTHER_MODEL
            )
        if header.dtype not in wanted.dtypes:
            raise ModelError(f"{self.folder}: tensor {name} is {header.dtype}", f"readable: {', '.join(wanted.dtypes)}")

    # Linears --------------------------------------------------------------------------------------------

    def linear(self, linear: spec.Linear) -> StoredLinear:
        """The weights of all parts. Raises `ModelError` that names the tensor or the field that is wrong."""
        parts = tuple(self._part(Matrix(part.name, part.outputs, linear.inputs)) for part in linear.parts)
        return StoredLinear(parts, tuple(self._get(wanted) for wanted in self._biases(linear)))

    def check_linear(self, linear: spec.Linear) -> None:
        """What `linear` would find, by the headers alone."""
        for part in linear.parts:
            for wanted in self._layout(Matrix(part.name, part.outputs, linear.inputs))[1].values():
                self.check(wanted)
        for wanted in self._biases(linear):
            self.check(wanted)

    def _biases(self, linear: spec.Linear) -> list[Wanted]:
        if not linear.bias:
            self._refuse_biases(linear)
            return []
        return [Wanted(f"{part.name}.bias", ((part.outputs,),), FLOATS) for part in linear.parts]

    def _refuse_biases(self, linear: spec.Linear) -> None:
        """Some converters write biases of zeros where a family has none; others would change the text."""
        for name in (f"{part.name}.bias" for part in linear.parts):
            if name in self.headers and bool(self._file_of[name].get_tensor(name).any()):
                raise ModelError(f"{self.folder}: tensor {name} is there, and config.json asks for none", _OTHER_MODEL)

    def _layout(self, matrix: Matrix) -> tuple[bool, Layout]:
        """Whether the matrix is quantised, and its tensors."""
        try:
            layout = self._format.layout(matrix, self.headers)
        except ModelError as error:
            raise ModelError(f"{self.folder}: {error.what}", error.fix) from error
        if layout is not None:
            return True, layout
        return False, {"weight": Wanted(f"{matrix.name}.weight", ((matrix.outputs, matrix.inputs),), FLOATS)}

    def _part(self, matrix: Matrix) -> StoredPart:
        is_quantised, layout = self._layout(matrix)
        tensors = {key: self._get(wanted) for key, wanted in layout.items()}
        if not is_quantised:
            return StoredPart(matrix.name, "plain", matrix.outputs, matrix.inputs, tensors["weight"])
        try:
            return self._format.build(matrix, tensors)
        except ModelError as error:
            raise ModelError(f"{self.folder}: {error.what}", error.fix) from error
