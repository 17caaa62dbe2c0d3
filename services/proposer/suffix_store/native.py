"""How the loops of this folder are compiled, and how they reach memory: by its address. Knows nothing of what lies
there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu_cache import kept_on_disk

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


def loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """A part of what is called: compiled into that, so it is kept with it."""
    return numba.njit(error_model="numpy")(function)


def kept(function: Callable[..., Any]) -> Callable[..., Any]:
    with kept_on_disk(function) as cache:
        return numba.njit(error_model="numpy", cache=cache)(function)


def _pointer_to(ctype: Any) -> Any:
    @intrinsic
    def pointer(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(ctype)(types.int64), generate  # type: ignore[no-untyped-call]

    return pointer


@intrinsic
def _fetch(typing: Any, address: Any) -> Any:
    """What lies there will be looked at: the processor may bring it while others are looked at."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, word = ir.PointerType(ir.IntType(8)), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
        module = builder.module
        function = cgutils.get_or_insert_function(module, kind, "llvm.prefetch.p0")  # type: ignore[no-untyped-call]
        # To be read, often, data.
        builder.call(function, [builder.inttoptr(args[0], pointer), word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


# numba's name for an array at an address; its own types don't tell.
carray: Any = numba.carray  # type: ignore[attr-defined]
ints_at, longs_at = _pointer_to(types.int32), _pointer_to(types.int64)
fetch: Any = _fetch
floats_at, doubles_at = _pointer_to(types.float32), _pointer_to(types.float64)
