"""Reads GGUF files: metadata and tensors, decoded to float32 with numpy.

The file is mapped, never trusted: every count, length and offset is checked against the file's size before
it is used, so a corrupt file ends in `GgufError`, not in a crash or an allocation. Knows nothing of models.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

MAGIC = b"GGUF"
MAX_ENTRIES = 1 << 16
MAX_STRING = 1 << 24
MAX_DIMENSIONS = 4
# Of one dimension: vocabularies have a quarter of it.
MAX_DIMENSION = 1 << 20
# Of metadata and tensor names together: large vocabularies have 10 MB. A byte becomes at most ten in memory.
MAX_HEAD_BYTES = 64 << 20
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class GgufError(ValueError):
    """The file is not what it claims to be, or holds something we don't read."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a tensor type packs `block` values into `bytes` bytes."""

    name: str
    block: int
    bytes: int
    decode: Callable[[np.ndarray], np.ndarray]  # [blocks, bytes] uint8 -> [blocks, block] float32


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    shape: tuple[int, ...]  # slowest first, as numpy and safetensors write it
    encoding: Encoding
    start: int
    end: int


class GgufFile:
    """A mapped GGUF file: `metadata`, `tensors` by name, and `values(name)`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise GgufError(f"{path}: cannot be read: {error}") from error
        reader = _Reader(self._bytes, path)
        tensor_count, entry_count = reader.header()
        self.metadata: dict[str, Any] = reader.metadata(entry_count)
        self.tensors = reader.tensors(tensor_count, self._alignment())

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise GgufError(f"{self.path}: general.alignment is {alignment!r}")
        return alignment

    def values(self, name: str, first: int = 0, last: int | None = None) -> np.ndarray:
        """Rows first..last-1 of a tensor (all of them by default), as float32."""
        tensor = self.tensors[name]
        rows, row = tensor.shape[0], math.prod(tensor.shape[1:])
        if len(tensor.shape) == 1:  # a vector is one row
            rows, row, first, last = 1, tensor.shape[0], 0, 1
        last = rows if last is None else min(last, rows)
        row_bytes = row // tensor.encoding.block * tensor.encoding.bytes
        raw = np.frombuffer(
            self._bytes, np.uint8, (last - first) * row_bytes, tensor.start + first * row_bytes
        ).reshape(-1, tensor.encoding.bytes)
        shape = tensor.shape if len(tensor.shape) == 1 else (last - first, *tensor.shape[1:])
        return tensor.encoding.decode(raw).reshape(shape)


class _Reader:
    """A cursor that cannot leave the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data, self._path, self._at = data, path, 0

    def header(self) -> tuple[int, int]:
        if self._take(4) != MAGIC:
            raise self._error("does not begin with GGUF")
        version = self._scalar("I")
        if version not in (2, 3):
            raise self._error(f"is version {version}; versions 2 and 3 are read")
        tensors, entries = self._scalar("Q"), self._scalar("Q")
        if tensors > MAX_ENTRIES or entries > MAX_ENTRIES:
            raise self._error(f"claims {tensors} tensors and {entries} metadata entries")
        return tensors, entries

    def metadata(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self._string()
            if key in found:
                raise self._error(f"has metadata {key} twice")
            found[key] = self._value(self._scalar("I"))
        return found

    def tensors(self, count: int, alignment: int) -> dict[str, Tensor]:
        heads = [self._tensor_head() for _ in range(count)]
        data_start = -(-self._at // alignment) * alignment
        tensors: dict[str, Tensor] = {}
        for name, shape, encoding, offset in heads:
            size = math.prod(shape) // encoding.block * encoding.bytes
            start = data_start + offset
            if start + size > len(self._data):
                raise self._error(f"is cut short: tensor {name} ends at byte {start + size}")
            if name in tensors:
                raise self._error(f"holds tensor {name} twice")
            tensors[name] = Tensor(name, shape, encoding, start, start + size)
        self._refuse_overlaps(tensors)
        return tensors

    def _refuse_overlaps(self, tensors: dict[str, Tensor]) -> None:
        """Values that share bytes would be as many files' worth of values as there are tensors."""
        for before, after in pairwise(sorted(tensors.values(), key=lambda each: each.start)):
            if after.start < before.end:
                raise self._error(f"tensor {after.name} overlaps {before.name}")

    def _tensor_head(self) -> tuple[str, tuple[int, ...], Encoding, int]:
        name = self._string()
        dimensions = self._scalar("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self._error(f"tensor {name} has {dimensions} dimensions")
        shape = tuple(self._scalar("Q") for _ in range(dimensions))[::-1]
        kind, offset = self._scalar("I"), self._scalar("Q")
        if kind not in ENCODINGS:
            known = ", ".join(encoding.name for encoding in ENCODINGS.values())
            raise self._error(f"tensor {name} has type {kind}; read are {known}")
        encoding = ENCODINGS[kind]
        if max(shape) > MAX_DIMENSION:
            raise self._error(f"tensor {name} has shape {shape}; dimensions up to {MAX_DIMENSION} are read")
        if min(shape) < 1 or shape[-1] % encoding.block:
            raise self._error(f"tensor {name} of shape {shape} cannot be {encoding.name}")
        return name, shape, encoding, offset

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise self._error(f"has a metadata value of unknown type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind, count = self._scalar("I"), self._scalar("Q")
        if kind == _STRING:
            if count * 8 > len(self._data) - self._at:
                raise self._error(f"has a list of {count} strings")
            return [self._string() for _ in range(count)]
        if kind not in _SCALARS:
            raise self._error(f"has a list of unknown type {kind}")
        # The size is checked before struct sees the count: a format string of 2**60 items is an attack.
        size = count * struct.calcsize(f"<{_SCALARS[kind]}")
        return list(struct.unpack(f"<{count}{_SCALARS[kind]}", self._take(size)))

    def _string(self) -> str:
        length = self._scalar("Q")
        if length > MAX_STRING:
            raise self._error(f"has a string of {length} bytes")
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._error(f"has a string that is not UTF-8: {error}") from error

    def _scalar(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self._take(struct.calcsize(f"<{kind}")))[0]

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise self._error(f"is cut short: {len(self._data)} bytes, at least {end} wanted")
        if end > MAX_HEAD_BYTES:
            raise self._error(f"has more than {MAX_HEAD_BYTES >> 20} MB of metadata")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _error(self, what: str) -> GgufError:
        return GgufError(f"{self._path}: {what}")


# Encodings: each takes the raw blocks and gives their values -------------------------------------------


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte `at` of each block, as a float32 column."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Low nibbles of all bytes, then the high ones: [blocks, n] -> [blocks, 2n]."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1)


def _fifth_bits(blocks: np.ndarray, at: int) -> np.ndarray:
    """32 bits at byte `at`, one a value, worth 16 each."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << 4


def _f32(blocks: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(blocks).view(np.float32)


def _f16(blocks: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(blocks).view(np.float16).astype(np.float32)


def _bf16(blocks: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(blocks).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    return (_nibbles(blocks[:, 2:]).astype(np.float32) - 8) * _half(blocks, 0)


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    return _nibbles(blocks[:, 4:]).astype(np.float32) * _half(blocks, 0) + _half(blocks, 2)


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return (codes.astype(np.float32) - 16) * _half(blocks, 0)


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return codes.astype(np.float32) * _half(blocks, 0) + _half(blocks, 2)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _half(blocks, 0)


def _iq4_nl(blocks: np.ndarray) -> np.ndarray:
    return _UNEVEN[_nibbles(blocks[:, 2:])] * _half(blocks, 0)


# Blocks of 256 values: a scale for every 16 or 32 of them, and a float16 that scales the scales.


def _bit_pairs(packed: np.ndarray) -> np.ndarray:
    """64 bytes of four pairs: the lowest pairs of 32 bytes come first, then the next: [blocks, 64] -> [blocks, 256]."""
    pairs = packed.reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    return (pairs & 3).reshape(-1, 256)


def _q2_k(blocks: np.ndarray) -> np.ndarray:
    scales, codes = blocks[:, :16], _bit_pairs(blocks[:, 16:80]).reshape(-1, 16, 16).astype(np.float32)
    step = (_half(blocks, 80) * (scales & 15))[:, :, None]
    offset = (_half(blocks, 82) * (scales >> 4))[:, :, None]
    return (codes * step - offset).reshape(-1, 256)


def _q3_k(blocks: np.ndarray) -> np.ndarray:
    # A third bit of every value in the first 32 bytes: bit b of byte i belongs to value 32 b + i.
    third = np.unpackbits(blocks[:, :32], axis=1, bitorder="little").reshape(-1, 32, 8).swapaxes(1, 2)
    codes = (_bit_pairs(blocks[:, 32:96]) | third.reshape(-1, 256) << 2).astype(np.float32) - 4
    # Sixteen scales of 6 bits: low nibbles in 8 bytes, high pairs in 4.
    low, high = blocks[:, 96:104], blocks[:, None, 104:108]
    pairs = (high >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).reshape(-1, 16)
    scales = (_nibbles(low) | pairs << 4).astype(np.float32) - 32
    step = (_half(blocks, 108) * scales)[:, :, None]
    return (codes.reshape(-1, 16, 16) * step).reshape(-1, 256)


def _steps_and_offsets(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """d and dmin, then eight 6-bit scales and eight 6-bit minima in 12 bytes; each [blocks, 8, 1]."""
    packed = blocks[:, 4:16]
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=1)  # [blocks, 8]
    minima = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=1)
    return (_half(blocks, 0) * scales)[:, :, None], (_half(blocks, 2) * minima)[:, :, None]


def _nibbles_by_32(packed: np.ndarray) -> np.ndarray:
    """Low nibbles of 32 bytes, then their high ones, then the next 32: [blocks, 128] -> [blocks, 8, 32]."""
    bytes_ = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([bytes_ & 15, bytes_ >> 4], axis=2).reshape(-1, 8, 32)


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    step, offset = _steps_and_offsets(blocks)
    return (_nibbles_by_32(blocks[:, 16:]).astype(np.float32) * step - offset).reshape(-1, 256)


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    step, offset = _steps_and_offsets(blocks)
    # Bit b of byte i is the fifth of value 32 b + i.
    fifth = np.unpackbits(blocks[:, 16:48], axis=1, bitorder="little").reshape(-1, 32, 8).swapaxes(1, 2)
    codes = _nibbles_by_32(blocks[:, 48:]) | fifth << 4
    return (codes.astype(np.float32) * step - offset).reshape(-1, 256)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    # Two halves of 128 values: 64 bytes of low nibbles, 32 bytes of high bit pairs, 8 scales each.
    low = blocks[:, :128].reshape(-1, 2, 2, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    nibbles = np.concatenate([low & 15, low >> 4], axis=2)  # [blocks, 2, 4, 32]
    pairs = (high >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    codes = (nibbles | (pairs << 4)).astype(np.float32) - 32
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32) * _half(blocks, 208)
    return (codes.reshape(-1, 16, 16) * scales[:, :, None]).reshape(-1, 256)


def _iq4_xs(blocks: np.ndarray) -> np.ndarray:
    # Eight scales of 6 bits: high pairs in 2 bytes, low nibbles in 4; then 256 nibbles in groups of 32.
    pairs = (blocks[:, 2:4, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1, 8)
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    step = (_half(blocks, 0) * ((low | pairs << 4).astype(np.float32) - 32))[:, :, None]
    codes = blocks[:, 8:].reshape(-1, 8, 16)
    return (_UNEVEN[np.concatenate([codes & 15, codes >> 4], axis=2)] * step).reshape(-1, 256)


# What the sixteen codes of the iq4 encodings stand for: denser around zero.
_UNEVEN = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)

ENCODINGS: dict[int, Encoding] = {
    0: Encoding("F32", 1, 4, _f32),
    1: Encoding("F16", 1, 2, _f16),
    2: Encoding("Q4_0", 32, 18, _q4_0),
    3: Encoding("Q4_1", 32, 20, _q4_1),
    6: Encoding("Q5_0", 32, 22, _q5_0),
    7: Encoding("Q5_1", 32, 24, _q5_1),
    8: Encoding("Q8_0", 32, 34, _q8_0),
    10: Encoding("Q2_K", 256, 84, _q2_k),
    11: Encoding("Q3_K", 256, 110, _q3_k),
    12: Encoding("Q4_K", 256, 144, _q4_k),
    13: Encoding("Q5_K", 256, 176, _q5_k),
    14: Encoding("Q6_K", 256, 210, _q6_k),
    20: Encoding("IQ4_NL", 32, 18, _iq4_nl),
    23: Encoding("IQ4_XS", 256, 136, _iq4_xs),
    30: Encoding("BF16", 1, 2, _bf16),
}
