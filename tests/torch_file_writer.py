"""Writes archives as torch.save does, with any pickle in them: opcodes by hand, entries by zipfile."""

from __future__ import annotations

import io
import struct
import zipfile
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Named:
    """A global: MODULE NAME."""

    name: str


@dataclass(frozen=True)
class Call:
    name: str
    given: Any


@dataclass(frozen=True)
class Kept:
    """A persistent id."""

    told: Any


@dataclass(frozen=True)
class Raw:
    code: bytes


@dataclass(frozen=True)
class Built:
    value: Any
    state: Any = field(default_factory=dict)


def encoded(value: Any) -> bytes:
    match value:
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            length = max(1, (value.bit_length() + 8) // 8)
            return b"\x8a" + bytes([length]) + value.to_bytes(length, "little", signed=True)
        case float():
            return b"G" + struct.pack(">d", value)
        case str():
            return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
        case tuple():
            return b"(" + b"".join(map(encoded, value)) + b"t"
        case list():
            return b"](" + b"".join(map(encoded, value)) + b"e"
        case dict():
            return b"}(" + b"".join(encoded(each) for pair in value.items() for each in pair) + b"u"
        case Named(name):
            module, _, attribute = name.rpartition(" ")
            return f"c{module}\n{attribute}\n".encode()
        case Call(name, given):
            return encoded(Named(name)) + encoded(given) + b"R"
        case Kept(told):
            return encoded(told) + b"Q"
        case Built(built, state):
            return encoded(built) + encoded(state) + b"b"
        case Raw(code):
            return code
    raise TypeError(type(value))


def pickle_of(value: Any) -> bytes:
    return b"\x80\x02" + encoded(value) + b"."


def tensor(
    shape: Any = (2, 3), strides: Any = (3, 1), offset: Any = 0, kind: str = "torch FloatStorage", key: str = "0",
    count: Any = 6, hooks: Any = None, more: tuple[Any, ...] = (), rebuild: str = "torch._utils _rebuild_tensor_v2",
) -> Call:  # fmt: skip
    """Of `VALUES` unless told otherwise."""
    storage = Kept(("storage", Named(kind), key, "cpu", count))
    hooks = Call("collections OrderedDict", ()) if hooks is None else hooks
    return Call(rebuild, (storage, offset, shape, strides, False, hooks, *more))


VALUES = struct.pack("<6f", 1.5, -2.0, 0.0, 4.0, 5.0, 6.25)


def packed(
    pickle: bytes, storages: dict[str, bytes] | None = None, folder: str = "archive", method: int = zipfile.ZIP_STORED,
    **others: bytes | None,
) -> bytes:  # fmt: skip
    """`others`: more entries, or the usual ones with other bytes; None: without."""
    entries: dict[str, bytes | None] = {"data.pkl": pickle, "byteorder": b"little"}
    entries |= {f"data/{key}": values for key, values in ({"0": VALUES} if storages is None else storages).items()}
    entries |= {"version": b"3\n"} | others
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, body in entries.items():
            if body is not None:
                archive.writestr(f"{folder}/{name}", body)
    return file.getvalue()


def state_dict_file(**tensors: Any) -> bytes:
    return packed(pickle_of(tensors or {"w": tensor()}))
