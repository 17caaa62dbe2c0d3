"""How the loops of this package are compiled, and how they get at memory: records at an address, as arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types
from numba.extending import intrinsic

from kernels.cpu_cache import kept_on_disk

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
# A record, or an array of records: numba knows its fields, and the type checker doesn't.
Record = Any
Records = Any


def loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is compiled into its callers, and kept on disk with them."""
    return numba.njit(error_model="numpy")(function)


def kept(function: Callable[..., Any], nogil: bool = False) -> Callable[..., Any]:
    """A function that Python calls. `nogil`: it runs without the interpreter's lock."""
    with kept_on_disk(function) as cache:
        return numba.njit(error_model="numpy", cache=cache, nogil=nogil)(function)


def pointer_to(dtype: npt.DTypeLike) -> Any:
    """A function that makes a pointer of an address, for `carray`."""
    kind = numba.from_dtype(np.dtype(dtype))

    @intrinsic
    def pointer(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate  # type: ignore[no-untyped-call]

    return pointer


# An array at a pointer; numba's type stubs lack it.
carray: Any = numba.carray  # type: ignore[attr-defined]
ints_at, longs_at, doubles_at = map(pointer_to, (np.int32, np.int64, np.float64))
