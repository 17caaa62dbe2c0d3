"""Headers of safetensors files: which tensors there are, of what type and shape. Reads no values; no torch.

    8 bytes n │ n bytes JSON: {"name": {"dtype", "shape", "data_offsets": [begin, end]}, …} │ values

Bytes from outside: nothing here trusts a number before it has been held against the file's size.
"""

from __future__ import annotations

import errno
import math
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from models.bounded_json import parsed
from models.errors import ModelError

# About 150 bytes a tensor: the largest files have a few MB.
MAX_HEADER_BYTES = 16 << 20
MAX_DIMENSIONS = 8
MAX_DIMENSION = 1 << 40
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
}  # fmt: skip
_REFETCH = "fetch the file again"


@dataclass(frozen=True, slots=True)
class TensorHeader:
    dtype: str  # as the file calls it: BF16, I8, F8_E4M3 …
    shape: tuple[int, ...]
    begin: int
    end: int  # bytes, counted from the end of the header


def read_headers(path: Path) -> dict[str, TensorHeader]:
    """Every tensor of a file that is whole and in order. Raises `ModelError` that names the file and the tensor."""
    try:
        size = file_size(path)
        with path.open("rb") as file:
            raw = _raw_header(file, path, size)
    except FileNotFoundError:
        fix = "only safetensors weights are read; fetch the folder again, whole"
        raise ModelError(f"{path} is missing", fix) from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}", "check the file and its rights") from None
    entries = _entries(raw, path)
    headers = {name: _header(path, name, entry) for name, entry in entries.items() if name != "__metadata__"}
    _check_places(path, headers, 8 + len(raw), size)
    return headers


def file_size(path: Path) -> int:
    """Raises `OSError` for what is no file: a pipe would keep its reader waiting."""
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "it is no file")
    return facts.st_size


def _raw_header(file: BinaryIO, path: Path, size: int) -> bytes:
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
        told = f"its header would have {length} of the file's {size} bytes"
        raise ModelError(f"{path} is not a safetensors file, or is cut short: {told}", _REFETCH)
    return file.read(length)


def _entries(raw: bytes, path: Path) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name stands there twice")
        return found

    try:
        entries = parsed(raw, object_pairs_hook=once)
        if not isinstance(entries, dict):
            raise ValueError("it is no JSON object")
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} has a broken header: {error}", _REFETCH) from error
    return entries


def _header(path: Path, name: str, entry: Any) -> TensorHeader:
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        readable = "the types of safetensors from BOOL to F64 are known here"
        raise ModelError(f"{path}: tensor {_short(name)} is of the unknown type {_short(dtype)}", readable)
    if not _are_counts(shape, MAX_DIMENSION) or len(shape) > MAX_DIMENSIONS:
        raise _broken(path, name, "shape", shape)
    if not _are_counts(offsets, 1 << 62) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _broken(path, name, "data_offsets", offsets)
    if math.prod(shape) * BITS[dtype] != (offsets[1] - offsets[0]) * 8:
        told = f"{offsets[1] - offsets[0]} bytes for {dtype} {tuple(shape)}"
        raise ModelError(f"{path} has a broken header: tensor {_short(name)} has {told}", _REFETCH)
    return TensorHeader(dtype, tuple(shape), offsets[0], offsets[1])


def _are_counts(value: Any, limit: int) -> bool:
    return isinstance(value, list) and all(type(each) is int and 0 <= each <= limit for each in value)


def _check_places(path: Path, headers: dict[str, TensorHeader], first: int, size: int) -> None:
    """The tensors lie one after the other, without holes, and end where the file ends."""
    at = 0
    for name, header in sorted(headers.items(), key=lambda item: (item[1].begin, item[1].end)):
        if header.begin != at:
            told = "overlaps another" if header.begin < at else "leaves a hole before it"
            raise ModelError(f"{path} has a broken header: tensor {_short(name)} {told}", _REFETCH)
        at = header.end
    if first + at > size:
        raise ModelError(f"{path} is cut short: {size} of {first + at} bytes", _REFETCH)
    if first + at < size:
        raise ModelError(f"{path} has {size - first - at} bytes after its last tensor", _REFETCH)


def _broken(path: Path, name: str, field: str, value: Any) -> ModelError:
    return ModelError(f"{path} has a broken header: {field} of tensor {_short(name)} is {_short(value)}", _REFETCH)


def _short(value: Any) -> str:
    """Names come from the file: printable, and never a screenful."""
    try:
        text = value if isinstance(value, str) and value.isprintable() else ascii(value)
    except (ValueError, RecursionError):
        text = "?"
    return text if len(text) <= 120 else text[:120] + "…"
