"""What a call of the compiled loops is given, as a record; what is known of the row at hand; and how functions are
compiled that only other compiled ones call."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic, overload_method

from kernels.verify.questions import RULE

_OPTIONS = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# What Python would call them through takes longer to compile than most of them.
inner = numba.njit(**_OPTIONS)
inlined = numba.njit(inline="always")

# Of numba's own type of integer: a function that is given a plain 0 is compiled once more for it.
NO = np.int64(0)

# Ids of a block: what is skipped or looked at together.
BLOCK = 64

_FIELDS = (
    "logits stride bfloat16 vocabulary blocks "
    # Memory for one row: a copy of it, the highest of every block, fractions of the most probable ids, and what lies
    # near an edge.
    "copied maxima fractions near_ids near_values near_weights "
    # Where the scores of the row at hand are: in the copy, or in the logits themselves.
    "scores "
    "sequences rules begins drafted parents "
    "seen_begins seen_ids seen_counts bias_begins bias_ids bias_values forbidden_begins forbidden_ids "
    "mask_bits mask_stride mask_of_row probs probs_stride probs_of_row "
    "tokens rows accepted failed "
    "asked asked_rows asked_tokens asked_count own_values best_ids best_values"
)


class Call(ctypes.Structure):
    """Sizes and addresses; 0 is the address of what isn't there."""

    _fields_ = [(name, ctypes.c_int64) for name in _FIELDS.split()]


def _at(kind: types.Type) -> Callable[[Any], Any]:
    """What is of this type at an address."""

    @intrinsic
    def typed(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(kind))

        return kind(types.int64), generate

    return typed


call_at, rule_at = _at(numba.from_dtype(np.dtype(Call))), _at(numba.from_dtype(RULE))
# Indexed like an array of int32. One of numba's own would count references, with atomics that not every target has.
ints_at = _at(types.CPointer(types.int32))


def methods(kind: type, *functions: Callable[..., Any]) -> None:
    """Give a named tuple these methods in compiled code."""
    for function in functions:
        _method(kind, function)


def _method(kind: type, function: Callable[..., Any]) -> None:
    @overload_method(types.BaseNamedTuple, function.__name__, jit_options=_OPTIONS)
    @functools.wraps(function)
    def choose(self, *_):
        return function if self.instance_class is kind else None


class Row(NamedTuple):
    """What one row says. Its scores are where the call says, until the next row is taken.

    What top_k, top_p and min_p leave is always the beginning of the order "most probable first, equal ones by id": up
    to and with `edge_id`, whose z is `edge`, and not further below the top than `floor`.
    """

    call: int  # the address
    valid: bool  # else nothing may be chosen from it
    inverse: np.float32  # z = score * inverse
    top: np.float32  # the highest z
    first: int  # the lowest id that has it
    edge: np.float32
    edge_id: int
    floor: np.float32
    total: int  # of all masses; 0 where nobody asks
    k0: int  # key of the noise
    k1: int
    k2: int
