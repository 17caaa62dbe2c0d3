"""The names that state dicts are pickled with, and what each becomes here: a value that says what is written. No name
is looked up anywhere else, and nothing of torch's is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from models.errors import TorchFileError


@dataclass(frozen=True, slots=True)
class Name:
    """What the file imports, if it is asked."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class Storage:
    key: str
    kind: Name
    count: int  # of elements; of bytes where it has no type


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A tensor as it is written: nothing of it is checked."""

    storage: Any
    offset: Any  # in elements
    shape: Any
    strides: Any  # in elements
    dtype: Any  # None: the storage's


_DICT = Name("collections", "OrderedDict")
_TENSOR = Name("torch._utils", "_rebuild_tensor_v2")
_TENSOR_WITH_DTYPE = Name("torch._utils", "_rebuild_tensor_v3")
_PARAMETER = Name("torch._utils", "_rebuild_parameter")
UNTYPED = Name("torch.storage", "UntypedStorage")
# As safetensors calls them.
OF_STORAGE = {
    Name("torch", f"{kind}Storage"): dtype
    for kind, dtype in (
        ("Double", "F64"), ("Float", "F32"), ("Half", "F16"), ("BFloat16", "BF16"), ("Long", "I64"), ("Int", "I32"),
        ("Short", "I16"), ("Char", "I8"), ("Byte", "U8"), ("Bool", "BOOL"),
    )
}  # fmt: skip
OF_DTYPE = {
    Name("torch", kind): dtype
    for kind, dtype in (
        ("uint16", "U16"), ("uint32", "U32"), ("uint64", "U64"), ("float8_e4m3fn", "F8_E4M3"),
        ("float8_e5m2", "F8_E5M2"), ("float8_e8m0fnu", "F8_E8M0"),
    )
}  # fmt: skip
READ = {_DICT, _TENSOR, _TENSOR_WITH_DTYPE, _PARAMETER, UNTYPED, *OF_STORAGE, *OF_DTYPE}


def storage_of(told: Any) -> Storage:
    """Of a persistent id. Raises `TorchFileError`."""
    match told:
        case ("storage", Name() as kind, str(key), str(), int(count)) if kind == UNTYPED or kind in OF_STORAGE:
            return Storage(key, kind, count)
    raise TorchFileError("its pickle has a persistent id that is no storage")


def called(name: Any, given: tuple[Any, ...]) -> Any:
    """What a call stands for. Raises `TorchFileError`."""
    match (name, *given):
        case (Name(),) if name == _DICT:
            return {}
        case (Name(), storage, offset, shape, strides, _, hooks, *more) if (
            name == _TENSOR and len(more) <= 1 and _are_empty(hooks, *more)
        ):
            return Rebuilt(storage, offset, shape, strides, None)
        case (Name(), storage, offset, shape, strides, _, hooks, dtype, *more) if (
            name == _TENSOR_WITH_DTYPE and len(more) <= 1 and _are_empty(hooks, *more)
        ):
            return Rebuilt(storage, offset, shape, strides, dtype)
        case (Name(), Rebuilt() as tensor, _, hooks) if name == _PARAMETER and _are_empty(hooks):
            return tensor
    raise TorchFileError(f"its pickle calls {_told(name)} with what torch.save doesn't give it")


def _are_empty(*values: Any) -> bool:
    """Hooks of the backward pass, and bits such as "conjugated": plain tensors have none."""
    return all(value is None or (type(value) is dict and not value) for value in values)


def _told(value: Any) -> str:
    return str(value) if isinstance(value, Name) else f"a {type(value).__name__}"
