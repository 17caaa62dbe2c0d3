"""How the loops of this folder are compiled, and how they reach memory: by its address. Knows nothing of what lies
there."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from kernels.cpu_cache import kept_on_disk

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
# A row and a word of it, as an array of two dimensions has them.
Table = npt.NDArray[np.int32]
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


class _Table(types.Type):
    """Rows of so many 32-bit words each, somewhere in memory: table[row, word]. As an array it would bring its shape
    along, multiply by it, and look whether a row is counted from the end, each time."""

    def __init__(self, words: int) -> None:
        super().__init__(name=f"Table({words})")
        self.words = words


@register_model(_Table)
class _TableModel(models.PrimitiveModel):
    def __init__(self, manager: Any, table: Any) -> None:
        super().__init__(manager, table, ir.IntType(32).as_pointer())  # type: ignore[no-untyped-call]


def table_of(words: int) -> Any:
    """What makes a table of an address."""

    @intrinsic
    def table(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return _Table(words)(types.int64), generate

    return table


def _place(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    table, wide = signature.args[0], types.int64
    row, word = (context.cast(builder, args[at], signature.args[at], wide) for at in (1, 2))
    return builder.gep(args[0], [builder.add(builder.mul(row, ir.Constant(row.type, table.words)), word)])


def _wide(*given: Any) -> Any:
    return map(types.unliteral, given)


@intrinsic
def _load(typing: Any, table: Any, row: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.sext(builder.load(_place(context, builder, signature, args)), ir.IntType(64))

    return types.int64(table, *_wide(row, word)), generate


@intrinsic
def _store(typing: Any, table: Any, row: Any, word: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        stored = context.cast(builder, args[3], signature.args[3], types.int32)
        builder.store(stored, _place(context, builder, signature, args))
        return context.get_dummy_value()

    return types.void(table, *_wide(row, word, value)), generate


@overload(operator.getitem, strict=False)
def _get(table: Any, at: Any) -> Any:
    if isinstance(table, _Table):
        return lambda table, at: _load(table, at[0], at[1])  # type: ignore[call-arg]
    return None


@overload(operator.setitem, strict=False)
def _set(table: Any, at: Any, value: Any) -> Any:
    if isinstance(table, _Table):
        return lambda table, at, value: _store(table, at[0], at[1], value)  # type: ignore[call-arg]
    return None


# numba's name for an array at an address; its own types don't tell.
carray: Any = numba.carray  # type: ignore[attr-defined]
ints_at, longs_at = _pointer_to(types.int32), _pointer_to(types.int64)
fetch: Any = _fetch
floats_at, doubles_at = _pointer_to(types.float32), _pointer_to(types.float64)
