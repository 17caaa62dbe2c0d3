"""Writes tensors of a torch file as a safetensors file: the same bits, each tensor in one piece and in the order of its
indices. A tensor is copied in pieces of bounded size.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.stride_tricks import as_strided

from models.errors import TorchFileError
from models.tensor_headers import MAX_HEADER_BYTES
from models.torch_files.tensors import Strided

_CHUNK = 1 << 25  # bytes


class SafetensorsFile:
    """What the file will hold, to the byte."""

    def __init__(self, tensors: Mapping[str, Strided]) -> None:
        # The widest first: then each begins at a multiple of its elements' size.
        self._tensors = dict(sorted(tensors.items(), key=lambda item: (-item[1].element_bytes, item[0])))
        self._header = _header(self._tensors)
        self.bytes = len(self._header) + sum(each.bytes for each in self._tensors.values())

    def write(self, file: BinaryIO) -> None:
        file.write(self._header)
        for each in self._tensors.values():
            for piece in pieces(each):
                file.write(piece)


def _header(tensors: Mapping[str, Strided]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, each in tensors.items():
        begin, end = end, end + each.bytes
        entries[name] = {"dtype": each.dtype, "shape": each.shape, "data_offsets": [begin, end]}
    encoded = json.dumps(entries, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    if len(encoded) > MAX_HEADER_BYTES:
        raise TorchFileError(f"its tensors' names and shapes take {len(encoded) >> 20} MB")
    return struct.pack("<Q", len(encoded)) + encoded


def pieces(tensor: Strided) -> Iterator[memoryview]:
    if not tensor.bytes:
        return
    if len(tensor.values) == tensor.bytes and _in_order(tensor):
        yield tensor.values
        return
    # Only bits are moved: an unsigned number stands for any element of its size.
    size = tensor.element_bytes
    flat = np.frombuffer(tensor.values, np.dtype(f"u{size}"))
    view = as_strided(flat, tensor.shape, [stride * size for stride in tensor.strides], writeable=False)
    yield from _chunks(view)


def _in_order(tensor: Strided) -> bool:
    step = 1
    for count, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if count > 1 and stride != step:
            return False
        step *= count
    return True


def _chunks(view: np.ndarray) -> Iterator[memoryview]:
    if view.nbytes <= _CHUNK:
        yield memoryview(np.ascontiguousarray(view)).cast("B")
        return
    rows = _CHUNK * len(view) // view.nbytes
    for first in range(0, len(view), max(1, rows)):
        yield from _chunks(view[first : first + rows] if rows else view[first])
