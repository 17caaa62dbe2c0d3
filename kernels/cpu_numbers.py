"""Numbers in compiled CPU loops: bfloat16 in and out of float32, and an exp that vectorizes.

bfloat16 arrays travel as uint16 (numpy has no bfloat16): `load` and `store` choose by the array's type, so
one loop serves both dtypes. All arithmetic is float32; every constant is written as one, since a bare Python
float would pull the loop into float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic, overload

from kernels.cpu_cache import kept_on_disk


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A loop compiled at its first call and kept on disk where that is possible (kernels/cpu_cache.py).

    Contraction and reassociation are allowed: they let sums vectorize, and the code that results is one fixed
    sequence of operations for a row. They don't touch what law 3 needs: no row's sums depend on another row.
    """
    with kept_on_disk(function) as cache:
        return numba.njit(
            nogil=True, cache=cache, error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"}
        )(function)


@intrinsic
def bits_of(_: Any, value: Any) -> Any:
    """The bits of a float32 as uint32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.uint32))

    return types.uint32(types.float32), generate


@intrinsic
def float_of(_: Any, value: Any) -> Any:
    """The float32 with these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(types.uint32), generate


@intrinsic
def _pointer(_: Any, address: Any, like: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.int64, like), generate


@numba.njit(inline="always")
def at_address(address: int, count: int, like: np.ndarray) -> np.ndarray:
    """`count` values at an address, of the type of `like`.

    A torch result comes as its address: making a numpy array of it would cost more than small loops take.
    """
    return numba.carray(_pointer(address, like), (count,))


def _place(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


@intrinsic
def get(_: Any, array: Any, index: Any) -> Any:
    """array[index] of a flat array, without the turn for negative indices that keeps loops from vectorizing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_place(context, builder, signature, arguments))

    return array.dtype(array, types.int64), generate


@intrinsic
def put(_: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index] = value of a flat array; `get`'s twin."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _place(context, builder, signature, arguments))
        return context.get_dummy_value()

    return types.void(array, types.int64, array.dtype), generate


def load(array: np.ndarray, index: int) -> np.float32:
    """array[index] as float32. Flat arrays only."""
    raise NotImplementedError("compiled code only")


def store(array: np.ndarray, index: int, value: np.float32) -> None:
    """array[index] = value; bfloat16 rounds to nearest, ties to even."""
    raise NotImplementedError("compiled code only")


# numba compares signatures with the annotations in them, so the two below have none.


@overload(load, inline="always")
def _load(array, index):
    if array.dtype == types.uint16:
        return lambda array, index: float_of(np.uint32(np.uint32(get(array, index)) << np.uint32(16)))
    return lambda array, index: np.float32(get(array, index))


@overload(store, inline="always")
def _store(array, index, value):
    if array.dtype == types.uint16:

        def to_bfloat16(array, index, value):
            bits = bits_of(np.float32(value))
            even = (bits >> np.uint32(16)) & np.uint32(1)
            put(array, index, np.uint16((bits + np.uint32(0x7FFF) + even) >> np.uint32(16)))

        return to_bfloat16

    def as_it_is(array, index, value):
        put(array, index, np.float32(value))

    return as_it_is


@numba.njit(inline="always")
def exp(x: np.float32) -> np.float32:
    """e**x for float32 to about 2e-7 of the value; 0 under -87, and x above 87 counts as 87.

    2**(x·log2 e) = 2**whole · 2**part: the whole goes into the exponent bits, the part (-½..½) through a
    polynomial. No branches and no library call: a loop of these becomes vector code.
    """
    x = min(max(x, np.float32(-87.3)), np.float32(87.0))
    whole = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    # ln 2 in two parts: the first has few bits, so the product is exact.
    part = x - whole * np.float32(0.693359375) + whole * np.float32(2.12194440e-4)
    sum_ = np.float32(1.9875691500e-4)
    sum_ = sum_ * part + np.float32(1.3981999507e-3)
    sum_ = sum_ * part + np.float32(8.3334519073e-3)
    sum_ = sum_ * part + np.float32(4.1665795894e-2)
    sum_ = sum_ * part + np.float32(1.6666665459e-1)
    sum_ = sum_ * part + np.float32(5.0000001201e-1)
    sum_ = sum_ * part * part + part + np.float32(1.0)
    return sum_ * float_of(np.uint32(np.uint32(np.int32(whole) + np.int32(127)) << np.uint32(23)))
