"""How the loops of this package are compiled, and how they access memory: by its address."""

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
Doubles = npt.NDArray[np.float64]


def loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is compiled into its callers, and kept on disk with them."""
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
    """Prefetches what is at the address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, word = ir.PointerType(ir.IntType(8)), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
        module = builder.module
        function = cgutils.get_or_insert_function(module, kind, "llvm.prefetch.p0")  # type: ignore[no-untyped-call]
        # For reading, with high locality, data.
        builder.call(function, [builder.inttoptr(args[0], pointer), word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


class _Words(types.Type):
    """An array of numbers of one type, known by its address alone: words[at]. With `columns` it is a table:
    table[row, column], and table[row] for the array of a row. A numba array would also pass its shape and owner to
    every function, count references, and check for negative indices."""

    def __init__(self, kind: Any, columns: int) -> None:
        super().__init__(name=f"Words({kind}, {columns})")
        self.kind, self.columns = kind, columns

    @property
    def loaded(self) -> Any:
        """Loaded integers are all of one width: numba would compile each function for each width."""
        return types.float64 if isinstance(self.kind, types.Float) else types.int64


@register_model(_Words)
class _WordsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, words: Any) -> None:
        super().__init__(manager, words, manager.lookup(words.kind).get_data_type().as_pointer())  # type: ignore[no-untyped-call]


def _words_of(kind: Any, columns: int = 0) -> Any:
    """A function that makes them of an address. 0 columns: no table."""

    @intrinsic
    def words(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return _Words(kind, columns)(types.int64), generate

    return words


def table_of(columns: int) -> Any:
    return _words_of(types.int32, columns)


def long_table_of(columns: int) -> Any:
    return _words_of(types.int64, columns)


def _place(context: Any, builder: Any, signature: Any, args: Any, places: int) -> Any:
    """The address of a word by its row and column, or by its number."""
    wide = [context.cast(builder, args[at], signature.args[at], types.int64) for at in range(1, 1 + places)]
    if places == 2:
        columns = ir.Constant(wide[0].type, signature.args[0].columns)
        return builder.gep(args[0], [builder.add(builder.mul(wide[0], columns), wide[1])])
    return builder.gep(args[0], wide)


def _wide(*given: Any) -> Any:
    return map(types.unliteral, given)


def _loads(places: int) -> Callable[..., Any]:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = builder.load(_place(context, builder, signature, args, places))
        return context.cast(builder, word, signature.args[0].kind, signature.return_type)

    return generate


def _stores(places: int) -> Callable[..., Any]:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        stored = context.cast(builder, args[-1], signature.args[-1], signature.args[0].kind)
        builder.store(stored, _place(context, builder, signature, args, places))
        return context.get_dummy_value()

    return generate


@intrinsic
def _load(typing: Any, words: Any, at: Any) -> Any:
    return words.loaded(words, *_wide(at)), _loads(1)


@intrinsic
def _load_of_row(typing: Any, table: Any, row: Any, word: Any) -> Any:
    return table.loaded(table, *_wide(row, word)), _loads(2)


@intrinsic
def _store(typing: Any, words: Any, at: Any, value: Any) -> Any:
    return types.void(words, *_wide(at, value)), _stores(1)


@intrinsic
def _store_of_row(typing: Any, table: Any, row: Any, word: Any, value: Any) -> Any:
    return types.void(table, *_wide(row, word, value)), _stores(2)


@intrinsic
def _row(typing: Any, table: Any, row: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = context.cast(builder, args[1], signature.args[1], types.int64)
        return builder.gep(args[0], [builder.mul(wide, ir.Constant(wide.type, table.columns))])

    return _Words(table.kind, 0)(table, *_wide(row)), generate


@intrinsic
def _part(typing: Any, words: Any, begin: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.gep(args[0], [context.cast(builder, args[1], signature.args[1], types.int64)])

    return words(words, *_wide(begin)), generate


@overload(operator.getitem, strict=False)
def _get(words: Any, at: Any) -> Any:
    if not isinstance(words, _Words):
        return None
    if not words.columns:
        return lambda words, at: _load(words, at)  # type: ignore[call-arg]
    if isinstance(at, types.BaseTuple):
        return lambda words, at: _load_of_row(words, at[0], at[1])  # type: ignore[call-arg]
    return lambda words, at: _row(words, at)  # type: ignore[call-arg]


@overload(operator.setitem, strict=False)
def _set(words: Any, at: Any, value: Any) -> Any:
    if not isinstance(words, _Words):
        return None
    if words.columns:
        return lambda words, at, value: _store_of_row(words, at[0], at[1], value)  # type: ignore[call-arg]
    return lambda words, at, value: _store(words, at, value)  # type: ignore[call-arg]


# An array at an address; numba's type stubs lack it.
carray: Any = numba.carray  # type: ignore[attr-defined]
ints_at, longs_at = _pointer_to(types.int32), _pointer_to(types.int64)
fetch: Any = _fetch
doubles_at: Any = _pointer_to(types.float64)
# Words without a length, and those from one of them on.
ints, longs, doubles = map(_words_of, (types.int32, types.int64, types.float64))
part: Any = _part
