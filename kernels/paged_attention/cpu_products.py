"""The vector code inside attention on CPU: products of a few rows with a page, softmax, and merging of parts.

What is multiplied lies in words of 32 bits: one float32, or two bfloat16 (neighbouring dimensions of a key,
neighbouring positions of a value). A product takes a word of each row, a vector of 16 words of the page, and adds
word by word into 16 float32 sums: no sum ever runs across a vector, and each sum runs over the words in order, so
a row's bits depend neither on how many rows nor on how many columns are taken at once.

`Numbers` says what a word is and how it is multiplied; everything is written as vectors of 16, which the compiler
cuts to the width that the machine has. Knows nothing of tables, tiles or threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels import amx
from kernels.cpu_vectors import (
    HAS_WIDE,
    I32,
    I64,
    LANES,
    V_F32,
    V_I32,
    as_floats,
    as_ints,
    compiled_for,
    constant,
    dot_bfloat16_pairs,
    fma,
    lane,
    largest,
    load,
    load_bfloat16,
    load_f32,
    load_floats,
    maximum,
    multiply_add,
    splat,
    spread,
    spread_int,
    store,
    store_bfloat16,
    store_bfloat16_part,
    store_f32,
    store_floats,
    store_floats_part,
    total,
    zeros,
)
from kernels.paged_attention import cpu_amx

VECTOR_BYTES = 4 * LANES
# The maximum of scores of which none is seen, and the score of what isn't: below it, so that its weight is 0.
EMPTY, UNSEEN = np.float32(-1e30), np.float32(-3e38)
# 2**x for -1/2..1/2 to 1e-7: 1 + x·(c1 + x·(c2 + ...)), fitted for the least largest relative error.
_C1, _C2, _C3, _C4, _C5 = (
    np.float32(c)
    for c in (0.6931470036506653, 0.24022242426872253, 0.05550733581185341, 0.009671512991189957, 0.001326472731307149)
)
_ONE, _LEAST, _ROUNDER = np.float32(1.0), np.float32(-127.0), np.float32(1.5 * 2**23)
_EXPONENT = np.int32(1 << 23)


@dataclass(frozen=True, slots=True)
class Numbers:
    """How keys, values, queries and weights are held and multiplied."""

    name: str
    # With the instruction that multiplies and adds pairs of it; where there is none, all numbers are float32.
    bfloat16: bool
    # Most rows of a product, and columns in vectors: as many sums as registers hold.
    rows: int
    columns: int
    # By tiles of AMX (cpu_amx.py).
    amx: bool = False

    @property
    def bytes(self) -> int:
        return 2 if self.bfloat16 else 4


_ROWS, _COLUMNS = (6, 4) if HAS_WIDE else (2, 2)
FLOAT32 = Numbers("float32", bfloat16=False, rows=_ROWS, columns=_COLUMNS)
BFLOAT16 = Numbers("bfloat16", bfloat16=True, rows=_ROWS, columns=_COLUMNS)
AMX = Numbers("amx", bfloat16=True, rows=amx.ROWS, columns=4, amx=True)


# Products ------------------------------------------------------------------------------------------------


def _multiply_words(b: Any, numbers: Numbers, x: Any, y: Any, total: Any) -> Any:
    """total + x·y, where x and y are vectors of words."""
    if numbers.bfloat16:
        return dot_bfloat16_pairs(b, total, x, y)
    return fma(b, b.bitcast(x, V_F32), b.bitcast(y, V_F32), total)


class _Product:
    """out = left · (the page's words), for one count of rows and columns. All in bytes and int64."""

    def __init__(self, builder: Any, numbers: Numbers, sums: list[Any], place: Any) -> None:
        self.builder, self.numbers, self.sums, self.place = builder, numbers, sums, place

    def step(self, lefts: list[Any], columns: int, right: Any, mask: Any | None) -> None:
        """Add the next word of each row times the vectors at `right`."""
        b = self.builder
        place = b.load(self.place)
        vectors = [load(b, b.add(right, I64(c * VECTOR_BYTES)), V_I32) for c in range(columns)]
        if mask is not None:
            vectors = [b.and_(vector, mask) for vector in vectors]
        for r, left in enumerate(lefts):
            word = splat(b, load(b, b.add(left, place), I32))
            for c, vector in enumerate(vectors):
                held = self.sums[r * columns + c]
                b.store(_multiply_words(b, self.numbers, word, vector, b.load(held)), held)
        b.store(b.add(place, I64(4)), self.place)

    def run(self, rows: int, columns: int, a: dict[str, Any]) -> None:
        b = self.builder
        lefts = [b.add(a["left"], b.mul(a["left_stride"], I64(r))) for r in range(rows)]
        for one in self.sums[: rows * columns]:
            b.store(constant(V_F32, 0.0), one)
        b.store(I64(0), self.place)
        last_page = b.sub(a["pages"], I64(1))
        last_step = b.sub(a["last_steps"], I64(1))
        with cgutils.for_range(b, a["pages"]) as page:
            start = self._page(a, page.index)
            steps = b.select(b.icmp_signed("==", page.index, last_page), last_step, a["steps"])
            with cgutils.for_range(b, steps) as step:
                self.step(lefts, columns, b.add(start, b.mul(step.index, a["step_stride"])), None)
        last = b.add(self._page(a, last_page), b.mul(last_step, a["step_stride"]))
        self.step(lefts, columns, last, splat(b, b.trunc(a["mask"], I32)))
        for r in range(rows):
            row = b.add(a["out"], b.mul(a["out_stride"], I64(r)))
            for c in range(columns):
                store(b, b.load(self.sums[r * columns + c]), b.add(row, I64(c * VECTOR_BYTES)))

    def _page(self, a: dict[str, Any], index: Any) -> Any:
        b = self.builder
        number = b.sext(load(b, b.add(a["table"], b.mul(index, I64(4))), I32), I64)
        return b.add(a["base"], b.mul(number, a["page_stride"]))


_PRODUCT = (
    "state", "rows", "columns", "left", "left_stride", "table", "pages", "base", "page_stride", "step_stride",
    "steps", "last_steps", "mask", "out", "out_stride",
)  # fmt: skip


def make_product(numbers: Numbers) -> Any:
    """product(state, rows, columns, left, left_stride, table, pages, base, page_stride, step_stride, steps, last_steps,
    mask, out, out_stride): the sums of `rows` rows and `columns` vectors of columns.

    Over the pages that `table` (int32) names, and in each over `steps` words (`last_steps` >= 1 in the last),
    whose vectors lie `step_stride` apart. A row's words follow each other from `left` on. The words of the last
    step of all count only where `mask` has bits. `state` is of tiles, where there are such.
    """
    if numbers.amx:
        return cpu_amx.product

    @intrinsic
    def product(
        _, state, rows, columns, left, left_stride, table, pages, base, page_stride, step_stride,
        steps, last_steps, mask, out, out_stride,
    ):  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            a = dict(zip(_PRODUCT, arguments, strict=True))
            sums = [cgutils.alloca_once(builder, V_F32) for _ in range(numbers.rows * numbers.columns)]
            one = _Product(builder, numbers, sums, cgutils.alloca_once(builder, I64))
            end = builder.append_basic_block("product.end")
            choice = builder.switch(builder.add(builder.mul(a["rows"], I64(8)), a["columns"]), end)
            columns = 1
            while columns <= numbers.columns:
                for rows in range(1, numbers.rows + 1):
                    block = builder.append_basic_block(f"product.{rows}x{columns}")
                    choice.add_case(I64(rows * 8 + columns), block)
                    builder.position_at_end(block)
                    one.run(rows, columns, a)
                    builder.branch(end)
                columns *= 2
            builder.position_at_end(end)
            return context.get_dummy_value()

        return types.void(*[types.int64] * len(_PRODUCT)), generate

    return product


# Softmax and merging -------------------------------------------------------------------------------------
# Ops are compiled without licence to reassociate: rounding by adding would be optimized away.


@intrinsic
def hide(_, scores, first, low, high):
    """The 16 scores of positions first.. that lie outside low..high become UNSEEN."""

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        scores, first, low, high = arguments
        place = b.add(splat(b, b.trunc(first, I32)), ir.Constant(V_I32, [I32(i) for i in range(LANES)]))
        seen = b.and_(
            b.icmp_signed(">=", place, splat(b, b.trunc(low, I32))),
            b.icmp_signed("<=", place, splat(b, b.trunc(high, I32))),
        )
        store(b, b.select(seen, load(b, scores, V_F32), constant(V_F32, float(UNSEEN))), scores)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@numba.njit
def _power_of_two(x):
    """2**x for x <= 0; exactly 1 at 0, exactly 0 from -127 down.

    The whole part of x goes into the exponent's bits: adding 1.5·2^23 rounds x to it and leaves it in the low bits.
    """
    x = maximum(x, spread(_LEAST))
    moved = x + spread(_ROUNDER)
    part = x - (moved - spread(_ROUNDER))
    value = multiply_add(spread(_C5), part, spread(_C4))
    value = multiply_add(value, part, spread(_C3))
    value = multiply_add(value, part, spread(_C2))
    value = multiply_add(value, part, spread(_C1))
    value = multiply_add(value, part, spread(_ONE))
    return as_floats(as_ints(value) + as_ints(moved) * spread_int(_EXPONENT))


def make_softmax(numbers: Numbers) -> Any:
    bfloat16 = numbers.bfloat16

    @compiled_for(numbers.name)
    def softmax(scores, first, last, to):
        """Scores of vectors first..last-1 become weights 2**(score - maximum), in the numbers' type and from the start
        of `scores` on; the maximum and the weights' sum go to to[0] and to[1].

        What is summed is the weights as they are used, after rounding.
        """
        most = spread(EMPTY)
        for index in range(first, last):
            most = maximum(most, load_floats(scores, index * LANES))
        most_of_all = largest(most)
        most = spread(most_of_all)
        sums = zeros()
        for index in range(first, last):
            weights = _power_of_two(load_floats(scores, index * LANES) - most)
            if bfloat16:
                store_bfloat16(scores, index * LANES, weights)
                sums = sums + load_bfloat16(scores, index * LANES)
            else:
                store_floats(scores, index * LANES, weights)
                sums = sums + weights
        store_f32(to, 0, most_of_all)
        store_f32(to, 1, total(sums))

    return softmax


@numba.njit
def merge(state, part, vectors):
    """state += part. Each is `vectors` vectors of sums, then a maximum and a total.

    An empty part leaves the state as it is to the bit, and an empty state becomes the part.
    """
    end = vectors * LANES
    old, new = load_f32(state, end), load_f32(part, end)
    most = max(old, new)
    keep, add = _power_of_two(spread(old - most)), _power_of_two(spread(new - most))
    for place in range(0, end, LANES):
        scaled = load_floats(part, place) * add
        store_floats(state, place, multiply_add(load_floats(state, place), keep, scaled))
    scaled = spread(load_f32(part, end + 1)) * add
    store_f32(state, end + 1, lane(multiply_add(spread(load_f32(state, end + 1)), keep, scaled), 0))
    store_f32(state, end, most)


def make_finish(numbers: Numbers) -> Any:
    bfloat16 = numbers.bfloat16

    @compiled_for(numbers.name, error_model="numpy")
    def finish(state, vectors, out, width, sinks, head):
        """out[:width] = sums / total, in the numbers' type; with `sinks` (float32, one a head) the total has 2**(sink -
        maximum), too."""
        share = spread(_ONE / load_f32(state, vectors * LANES + 1))
        if sinks != 0:
            old, sink = load_f32(state, vectors * LANES), load_f32(sinks, head)
            most = max(old, sink)
            keep, add = _power_of_two(spread(old - most)), _power_of_two(spread(sink - most))
            share = keep / multiply_add(spread(load_f32(state, vectors * LANES + 1)), keep, add)
        for place in range(0, width, LANES):
            value = load_floats(state, place) * share
            if bfloat16:
                store_bfloat16_part(out, place, value, width - place)
            else:
                store_floats_part(out, place, value, width - place)

    return finish
