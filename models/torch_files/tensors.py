"""The tensors of a file that torch.save wrote: of which type and shape, and where their values lie. Reads no values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from models.errors import TorchFileError
from models.tensor_headers import BITS, MAX_DIMENSION, MAX_DIMENSIONS
from models.torch_files.archive import read_archive
from models.torch_files.names import OF_DTYPE, OF_STORAGE, UNTYPED, Name, Rebuilt, Storage
from models.torch_files.pickled import read_pickle

_PICKLE = "data.pkl"
# What torch.save writes beside the pickle and the storages.
_BESIDE = ("version", "byteorder")
# Where training scripts put a state dict.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module")
_NEWEST_VERSION = 3


@dataclass(frozen=True, slots=True)
class Strided:
    """A tensor whose values all lie inside `values`, of which the first is at 0."""

    dtype: str  # as safetensors calls it
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    values: memoryview

    @property
    def element_bytes(self) -> int:
        return BITS[self.dtype] // 8

    @property
    def bytes(self) -> int:
        return self.element_bytes * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class StateDict:
    tensors: dict[str, Strided]
    left_out: tuple[str, ...]  # what a training script keeps beside a state dict


def read_tensors(raw: memoryview) -> StateDict:
    """Raises `TorchFileError` that says what in the file isn't read."""
    entries = read_archive(raw)
    _check_entries(entries)
    told, left_out = _unwrapped(read_pickle(bytes(entries[_PICKLE])))
    return StateDict({_tensor_name(name): _tensor(name, value, entries) for name, value in told.items()}, left_out)


def _check_entries(entries: dict[str, memoryview]) -> None:
    for name in entries:
        known = name == _PICKLE or name in _BESIDE or name.startswith(("data/", "."))
        if not known:
            raise TorchFileError(f"its entry {name} is none of torch.save's; a TorchScript file holds code")
    if _PICKLE not in entries:
        raise TorchFileError(f"it has no {_PICKLE}; torch.save always writes one")
    version, order = (bytes(entries.get(name, b"")[:40]) for name in _BESIDE)
    if not version.strip().isdigit() or int(version) > _NEWEST_VERSION:
        raise TorchFileError(f"its format has version {version!r}; at most {_NEWEST_VERSION} is read")
    if order not in (b"", b"little"):
        raise TorchFileError(f"its numbers have the byte order {order!r}; little is read")


def _unwrapped(value: Any) -> tuple[dict[Any, Any], tuple[str, ...]]:
    """The state dict, and the names of what lies beside it."""
    if type(value) is not dict:
        raise TorchFileError(f"it holds no state dict but a {_kind(value)}")
    inner = [name for name in _WRAPPERS if type(value.get(name)) is dict]
    if len(inner) > 1:
        raise TorchFileError(f"it holds several state dicts: {' and '.join(inner)}")
    found, left_out = (value[inner[0]], value.keys() - {inner[0]}) if inner else (value, ())
    if not found:
        raise TorchFileError("it holds no tensors")
    return found, tuple(sorted(map(str, left_out)))


def _tensor_name(name: Any) -> str:
    if not isinstance(name, str) or name in ("", "__metadata__"):
        raise TorchFileError(f"it has a tensor called {name!r}")
    return name


def _tensor(name: Any, told: Any, entries: dict[str, memoryview]) -> Strided:
    def refused(why: str) -> TorchFileError:
        return TorchFileError(f"tensor {name} {why}")

    if not isinstance(told, Rebuilt):
        raise TorchFileError(f"{name} is no tensor but a {_kind(told)}")
    if not isinstance(told.storage, Storage):
        raise refused("has no storage")
    if (dtype := _dtype(told)) is None:
        raise refused("is of a type that safetensors doesn't have")
    if not _are_counts(told.shape, MAX_DIMENSION) or len(told.shape) > MAX_DIMENSIONS:
        raise refused(f"has the shape {_short(told.shape)}")
    if not _are_counts(told.strides, 1 << 62) or len(told.strides) != len(told.shape):
        raise refused(f"has the strides {_short(told.strides)}")
    if not _are_counts((told.offset,), 1 << 62):
        raise refused(f"begins at {_short(told.offset)}")
    size = BITS[dtype] // 8
    values = entries.get(f"data/{told.storage.key}")
    wanted = told.storage.count * (1 if told.storage.kind == UNTYPED else size)
    if values is None or len(values) != wanted:
        has = "is not there" if values is None else f"has {len(values)} bytes"
        raise refused(f"has a storage of {wanted} bytes, which {has}")
    begin, end = told.offset * size, (told.offset + _span(told.shape, told.strides)) * size
    if end > wanted:
        raise refused(f"reaches to byte {end} of a storage with {wanted}")
    # A dimension of one element has any stride, and none is read.
    strides = tuple(stride if count > 1 else 0 for stride, count in zip(told.strides, told.shape, strict=True))
    return Strided(dtype, told.shape, strides, values[begin:end])


def _dtype(told: Rebuilt) -> str | None:
    if told.dtype is None:
        return OF_STORAGE.get(told.storage.kind)
    untyped = told.storage.kind == UNTYPED
    return OF_DTYPE.get(told.dtype) if untyped and isinstance(told.dtype, Name) else None


def _span(shape: Iterable[int], strides: Iterable[int]) -> int:
    """From the first element to behind the last one."""
    pairs = list(zip(shape, strides, strict=True))
    return 1 + sum((count - 1) * stride for count, stride in pairs) if all(count for count, _ in pairs) else 0


def _are_counts(value: Any, limit: int) -> bool:
    return isinstance(value, tuple) and all(type(each) is int and 0 <= each <= limit for each in value)


def _kind(value: Any) -> str:
    return str(value) if isinstance(value, Name) else type(value).__name__


def _short(value: Any) -> str:
    """Numbers alone: the text of a deep value would be made by recursion."""
    if isinstance(value, tuple) and all(isinstance(each, int) for each in value[:20]):
        return str(value[:20])
    return str(value) if isinstance(value, int) else f"a {type(value).__name__}"
