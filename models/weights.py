"""Weights of a Hugging Face folder: tensors by name, mapped from safetensors files, shapes checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from models.sources import ModelError, weight_files

_READABLE = (torch.bfloat16, torch.float16, torch.float32)


class Weights:
    """Maps the files; pages are read when a tensor's values are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file_of: dict[str, Any] = {}
        for path in weight_files(folder):
            try:
                file = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{path} cannot be read: {error}", "fetch the file again") from error
            self._file_of.update(dict.fromkeys(file.keys(), file))

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor as it is stored. Raises `ModelError` when it is missing or of another shape."""
        if name not in self._file_of:
            raise ModelError(f"{self.folder}: tensor {name} is missing", "fetch the folder again, whole")
        tensor: torch.Tensor = self._file_of[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"{self.folder}: tensor {name} has shape {tuple(tensor.shape)}, config.json asks for {shape}",
                "config.json and the weights belong to different models",
            )
        if tensor.dtype not in _READABLE:
            raise ModelError(f"{self.folder}: tensor {name} is {tensor.dtype}", "use float32, float16 or bfloat16")
        return tensor
