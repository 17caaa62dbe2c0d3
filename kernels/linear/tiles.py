"""The inner loops of a linear on CPU: sums of a few rows times a block of 32 outputs, as LLVM IR.

    for each step of K:                 one 32-bit word of every row, and 2 × 16 words of the block
        sums[r][0..15]  += x[r] · w[0..15]       (a word: 1 float32, 2 bfloat16 or 4 bytes)
        sums[r][16..31] += x[r] · w[16..31]

Every row and output has one running sum, and all variants (1 row, 2 rows, …) take the steps in the same order:
that is what makes a row's bits independent of its batch. The sums stay in registers for the whole loop; they are
loaded before and stored after it, so a caller may go on where it stopped. While it computes, a tile asks for the
weights that come next: DRAM is then busy while the arithmetic is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import types
from numba.extending import intrinsic, models, register_model

from kernels import cpu_vectors as v
from kernels.cpu_vectors import I32, I64, LANES, V_F32, V_I32

BLOCK = 2 * LANES
# Bytes of a block's weights in one step.
STEP_BYTES = 4 * BLOCK
# Rows of a tile: as many as leave registers for weights and inputs, because a sum that is kept in memory waits for its
# own store at each step. 32 registers of 512 bits hold 8 rows' sums of a whole block. 16 of 256 hold those of 2 rows;
# larger tiles pass the block twice, 16 outputs at a time, and find it in the cache the second time. The parts of a word
# of bytes take registers, too; those of bfloat16 only one after the other, because inputs are float32 there.
WIDE_ROWS = 8
NARROW_ROWS, NARROW_ROWS_OF_BYTES = 6, 3
NARROW_WHOLE = 3 if v.HAS_WIDE else 2
FLOAT32_ROWS = (WIDE_ROWS, WIDE_ROWS) if v.HAS_WIDE else (NARROW_ROWS, NARROW_WHOLE)


def _float32(builder: Any, sums: Any, x: Any, w: Any) -> Any:
    return v.fma(builder, builder.bitcast(x, V_F32), builder.bitcast(w, V_F32), sums)


def _bfloat16(builder: Any, sums: Any, x: Any, w: Any) -> Any:
    return v.dot_bfloat16_pairs(builder, sums, x, w)


def _low_bfloat16(builder: Any, sums: Any, x: Any, w: Any) -> Any:
    return v.fma(builder, builder.bitcast(x, V_F32), v.low_bfloat16(builder, w), sums)


def _high_bfloat16(builder: Any, sums: Any, x: Any, w: Any) -> Any:
    return v.fma(builder, builder.bitcast(x, V_F32), v.high_bfloat16(builder, w), sums)


def _int8(builder: Any, sums: Any, x: Any, w: Any) -> Any:
    return v.dot_byte_quads(builder, sums, x, w, native=True)


def _int8_portable(builder: Any, sums: Any, x: Any, w: Any) -> Any:
    return v.dot_byte_quads(builder, sums, x, w, native=False)


def _loop(builder: Any, steps: Any, state: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """state = body(k, state) for k < steps; what the state is in the end."""
    before = builder.block
    head, inside, after = (builder.append_basic_block(name) for name in ("head", "inside", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    k = builder.phi(I64)
    phis = [builder.phi(value.type) for value in state]
    builder.cbranch(builder.icmp_signed("<", k, steps), inside, after)
    builder.position_at_end(inside)
    results = body(k, phis)
    for phi, start, result in zip([k, *phis], [I64(0), *state], [builder.add(k, I64(1)), *results], strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(result, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return phis


class Variant(types.Opaque):
    """A kind of arithmetic as a type of numba's: functions that take a value of it are compiled for that kind."""

    def __init__(self, name: str, combines: Sequence[Any], sums: Any, rows: int, whole: int) -> None:
        """In one step a row has a word of 32 bits for each of `combines`, which adds that word's products. A tile has
        up to `rows` rows; one of up to `whole` rows passes both halves of a block at once."""
        super().__init__(name)
        self.combines, self.sums, self.rows, self.whole = combines, sums, rows, whole


def _tile(builder: Any, variant: Variant, rows: int, halves: Sequence[int], arguments: Any) -> None:
    x, stride, w, steps, sums, ahead, share = arguments
    combines, kind = variant.combines, variant.sums
    inputs = [builder.add(x, builder.mul(stride, I64(row))) for row in range(rows)]
    places = [builder.add(sums, I64((row * BLOCK + half * LANES) * 4)) for row in range(rows) for half in halves]
    state = [v.load(builder, place, kind, 64) for place in places]

    def body(k: Any, state: list[Any]) -> list[Any]:
        weights = builder.add(w, builder.mul(k, I64(STEP_BYTES)))
        words = [v.load(builder, builder.add(weights, I64(64 * half)), V_I32, 64) for half in halves]
        line = builder.add(ahead, builder.mul(k, share))
        for half in halves:
            v.emit_prefetch(builder, builder.add(line, I64(64 * half)))
        results = list(state)
        for number, combine in enumerate(combines):
            for row in range(rows):
                at = builder.add(builder.mul(k, I64(4 * len(combines))), I64(4 * number))
                broadcast = v.splat(builder, v.load(builder, builder.add(inputs[row], at), I32))
                for index, weight in enumerate(words):
                    place = len(halves) * row + index
                    results[place] = combine(builder, results[place], broadcast, weight)
        return results

    for place, value in zip(places, _loop(builder, steps, state, body), strict=True):
        v.store(builder, value, place, 64)


register_model(Variant)(models.OpaqueModel)


def _variant(name: str, combines: Sequence[Any], sums: Any, rows: int, whole: int) -> Any:
    """What gives, in compiled code, the value that stands for this variant."""
    kind = Variant(name, combines, sums, rows, whole)

    def typing(_: Any) -> Any:
        return kind(), lambda context, builder, signature, arguments: context.get_dummy_value()

    return intrinsic(typing)


float32_wide = _variant("float32_wide", [_float32], V_F32, WIDE_ROWS, WIDE_ROWS)
float32_narrow = _variant("float32_narrow", [_float32], V_F32, NARROW_ROWS, NARROW_WHOLE)
bfloat16_wide = _variant("bfloat16_wide", [_bfloat16], V_F32, WIDE_ROWS, WIDE_ROWS)
bfloat16_float32 = _variant("bfloat16_float32", [_low_bfloat16, _high_bfloat16], V_F32, *FLOAT32_ROWS)
int8_wide = _variant("int8_wide", [_int8], V_I32, WIDE_ROWS, WIDE_ROWS)
int8_narrow = _variant("int8_narrow", [_int8_portable], V_I32, NARROW_ROWS_OF_BYTES, NARROW_WHOLE)


@intrinsic
def most_rows(_: Any, variant: Any) -> Any:
    """Rows that fit into a tile."""
    return types.int64(variant), lambda context, builder, signature, arguments: I64(variant.rows)


@intrinsic
def whole_rows(_: Any, variant: Any) -> Any:
    """Rows of a tile that passes a block once."""
    return types.int64(variant), lambda context, builder, signature, arguments: I64(variant.whole)


@intrinsic
def step_bytes(_: Any, variant: Any) -> Any:
    """Of a row, in one step."""
    return types.int64(variant), lambda context, builder, signature, arguments: I64(4 * len(variant.combines))


@intrinsic
def sums_are_ints(_: Any, variant: Any) -> Any:
    is_int = int(variant.sums is V_I32)
    return types.boolean(variant), lambda context, builder, signature, arguments: v.I1(is_int)


@intrinsic
def tile(_: Any, variant: Any, rows: Any, x: Any, stride: Any, w: Any, steps: Any, sums: Any, ahead: Any, share: Any):
    """sums [rows, 32] += x · w, of 1 to `most_rows` rows.

    `x` are rows of 32-bit words, `stride` bytes apart; `w` is a block [steps, 32] of words. `ahead` is memory that
    is wanted soon; the tile asks for `share` bytes of it a step.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        end = builder.append_basic_block("end")
        choice = builder.switch(arguments[1], end)
        for count in range(1, variant.rows + 1):
            block = builder.append_basic_block(f"rows{count}")
            choice.add_case(I64(count), block)
            builder.position_at_end(block)
            for halves in [(0, 1)] if count <= variant.whole else [(0,), (1,)]:
                _tile(builder, variant, count, halves, arguments[2:])
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 8), generate
