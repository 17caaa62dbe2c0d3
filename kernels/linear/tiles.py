"""The inner loops of a linear on CPU: sums of a few rows times a block of 32 outputs, as LLVM IR.

    for each step of K:                 one 32-bit word of every row, and 2 × 16 words of the block
        sums[r][0..15]  += x[r] · w[0..15]       (a word: 1 float32, 2 bfloat16 or 4 bytes)
        sums[r][16..31] += x[r] · w[16..31]

Every row and output has one running sum, and all variants (1 row, 2 rows, …) take the steps in the same order:
that is what makes a row's bits independent of its batch. The sums stay in registers for the whole loop; they are
loaded before and stored after it, so a caller may go on where it stopped. While it computes, a tile asks for the
weights that come next: DRAM is then busy while the arithmetic is.

Of weights in mxfp4 a step has 32 inputs: the scales of 32 outputs, then a byte of two codes for each output and word.
The words are made of them on the way, and are those of the same weights in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from kernels import cpu_vectors as v
from kernels.cpu_vectors import I32, I64, LANES, V_F32, V_I32

BLOCK = 2 * LANES
# Bytes of a block's weights in one step.
STEP_BYTES = 4 * BLOCK
# The same of codes of 4 bits, and the words of a row that such a step has.
CODED_WORDS = 16
CODED_STEP_BYTES = BLOCK * (1 + CODED_WORDS)
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


def _numbers(shift: int) -> Any:
    """What the 16 codes stand for, as bfloat16 in the low or the high half of a lane."""
    halves = [0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0]
    return ir.Constant(V_I32, [I32((half | sign) << shift) for sign in (0, 0x8000) for half in halves])


def _exponents(builder: Any, scales: Any) -> Any:
    """What is added to the bits of both numbers of a word: a scale is 2 to the power of (its byte - 127)."""
    exponents = builder.shl(builder.sub(scales, v.constant(V_I32, 127)), v.constant(V_I32, 7))
    low = builder.and_(exponents, v.constant(V_I32, 0xFFFF))
    return builder.or_(low, builder.shl(low, v.constant(V_I32, 16)))


def _looked_up(builder: Any, codes: Any, exponents: Any) -> Any:
    """Words of two bfloat16 from bytes of two codes: by a table, and what isn't zero with its exponent."""
    low, high = (
        v.call(builder, "llvm.x86.avx512.permvar.si.512", V_I32, [_numbers(16 * half), index])
        for half, index in enumerate((codes, builder.lshr(codes, v.constant(V_I32, 4))))
    )
    pairs = builder.bitcast(builder.or_(low, high), v.V_PAIRS)
    size = builder.and_(pairs, v.constant(v.V_PAIRS, 0x7FFF))
    is_number = builder.icmp_unsigned("!=", size, v.constant(v.V_PAIRS, 0))
    added = builder.add(pairs, builder.bitcast(exponents, v.V_PAIRS))
    return builder.bitcast(builder.select(is_number, added, pairs), V_I32)


def _factors(builder: Any, scales: Any) -> Any:
    """Half of each scale, as a float."""
    return builder.bitcast(builder.shl(builder.sub(scales, v.constant(V_I32, 1)), v.constant(V_I32, 23)), V_F32)


def _computed(builder: Any, codes: Any, factors: Any) -> Any:
    """The same on any CPU: twice the number from eight digits in a constant, then its sign and its scale."""

    def numbers(codes: Any) -> Any:
        places = builder.shl(builder.and_(codes, v.constant(V_I32, 7)), v.constant(V_I32, 2))
        doubled = builder.and_(builder.lshr(v.constant(V_I32, 0xC8643210), places), v.constant(V_I32, 15))
        signs = builder.shl(builder.and_(codes, v.constant(V_I32, 8)), v.constant(V_I32, 28))
        sized = builder.bitcast(builder.fmul(builder.sitofp(doubled, V_F32), factors), V_I32)
        return builder.or_(sized, signs)

    low, high = numbers(codes), numbers(builder.lshr(codes, v.constant(V_I32, 4)))
    return builder.or_(builder.lshr(low, v.constant(V_I32, 16)), builder.and_(high, v.constant(V_I32, 0xFFFF0000)))


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

    def __init__(
        self, name: str, combines: Sequence[Any], sums: Any, rows: int, whole: int,
        decode: tuple[Any, Any] | None = None,
    ) -> None:  # fmt: skip
        """A row has a word of 32 bits for each of `combines`, which adds that word's products with a word of weights.
        A tile has up to `rows` rows; one of up to `whole` rows passes both halves of a block at once. `decode`: what
        is made of the scales of a step, and with it of codes a word of weights."""
        super().__init__(name)
        self.combines, self.sums, self.rows, self.whole, self.decode = combines, sums, rows, whole, decode

    @property
    def decoded(self) -> Variant:
        """The same with words in the place of codes."""
        if self.decode is None:
            return self
        return Variant(f"{self.name}_decoded", self.combines, self.sums, self.rows, self.whole)

    @property
    def words(self) -> int:
        """Of weights, in a step."""
        return 1 if self.decode is None else CODED_WORDS

    @property
    def weight_bytes(self) -> int:
        return STEP_BYTES if self.decode is None else CODED_STEP_BYTES


def _bytes_of(builder: Any, address: Any, halves: Sequence[int]) -> list[Any]:
    """A byte of each output, as ints."""
    places = [builder.add(address, I64(LANES * half)) for half in halves]
    return [builder.zext(v.load(builder, place, v.V_I8, LANES), V_I32) for place in places]


def _words(
    builder: Any, variant: Variant, weights: Any, halves: Sequence[int]
) -> Callable[[Any], list[Any]]:  # fmt: skip
    """What makes word `j` of a step of codes."""
    assert variant.decode is not None
    begin, decode = variant.decode
    scales = [begin(builder, each) for each in _bytes_of(builder, weights, halves)]
    codes = builder.add(weights, I64(BLOCK))

    def word(j: Any) -> list[Any]:
        found = _bytes_of(builder, builder.add(codes, builder.mul(j, I64(BLOCK))), halves)
        return [decode(builder, *each) for each in zip(found, scales, strict=True)]

    return word


def _tile(builder: Any, variant: Variant, rows: int, halves: Sequence[int], arguments: Any) -> None:
    x, stride, w, steps, sums, ahead, share = arguments
    combines, kind = variant.combines, variant.sums
    row_bytes = 4 * len(combines) * variant.words
    inputs = [builder.add(x, builder.mul(stride, I64(row))) for row in range(rows)]
    places = [builder.add(sums, I64((row * BLOCK + half * LANES) * 4)) for row in range(rows) for half in halves]
    state = [v.load(builder, place, kind, 64) for place in places]

    def products(at: Any, words: Sequence[Any], state: list[Any]) -> list[Any]:
        """The state, and the products of a word of weights with what the rows have `at` bytes from their beginning."""
        results = list(state)
        for number, combine in enumerate(combines):
            for row in range(rows):
                place = builder.add(inputs[row], builder.add(at, I64(4 * number)))
                broadcast = v.splat(builder, v.load(builder, place, I32))
                for index, weight in enumerate(words):
                    one = len(halves) * row + index
                    results[one] = combine(builder, results[one], broadcast, weight)
        return results

    def body(k: Any, state: list[Any]) -> list[Any]:
        weights = builder.add(w, builder.mul(k, I64(variant.weight_bytes)))
        line, at = builder.add(ahead, builder.mul(k, share)), builder.mul(k, I64(row_bytes))
        lines = halves if variant.decode is None else range(-(-variant.weight_bytes // 64))
        for each in lines:
            v.emit_prefetch(builder, builder.add(line, I64(64 * each)))
        if variant.decode is None:
            words = [v.load(builder, builder.add(weights, I64(64 * half)), V_I32, 64) for half in halves]
            return products(at, words, state)
        words_of = _words(builder, variant, weights, halves)

        def word(j: Any, state: list[Any]) -> list[Any]:
            return products(builder.add(at, builder.mul(j, I64(4 * len(combines)))), words_of(j), state)

        return _loop(builder, I64(CODED_WORDS), state, word)

    for place, value in zip(places, _loop(builder, steps, state, body), strict=True):
        v.store(builder, value, place, 64)


register_model(Variant)(models.OpaqueModel)


def _variant(
    name: str, combines: Sequence[Any], sums: Any, rows: int, whole: int, decode: tuple[Any, Any] | None = None
) -> Any:
    """What gives, in compiled code, the value that stands for this variant."""
    kind = Variant(name, combines, sums, rows, whole, decode)

    def typing(_: Any) -> Any:
        return kind(), lambda context, builder, signature, arguments: context.get_dummy_value()

    return intrinsic(typing)


float32_wide = _variant("float32_wide", [_float32], V_F32, WIDE_ROWS, WIDE_ROWS)
float32_narrow = _variant("float32_narrow", [_float32], V_F32, NARROW_ROWS, NARROW_WHOLE)
bfloat16_wide = _variant("bfloat16_wide", [_bfloat16], V_F32, WIDE_ROWS, WIDE_ROWS)
bfloat16_float32 = _variant("bfloat16_float32", [_low_bfloat16, _high_bfloat16], V_F32, *FLOAT32_ROWS)
mxfp4_wide = _variant("mxfp4_wide", [_bfloat16], V_F32, WIDE_ROWS, WIDE_ROWS, (_exponents, _looked_up))
mxfp4_float32 = _variant(
    "mxfp4_float32", [_low_bfloat16, _high_bfloat16], V_F32, *FLOAT32_ROWS, (_factors, _computed)
)  # fmt: skip
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
    size = 4 * len(variant.combines) * variant.words
    return types.int64(variant), lambda context, builder, signature, arguments: I64(size)


@intrinsic
def weight_bytes(_: Any, variant: Any) -> Any:
    """Of a block, in one step."""
    return types.int64(variant), lambda context, builder, signature, arguments: I64(variant.weight_bytes)


@intrinsic
def sums_are_ints(_: Any, variant: Any) -> Any:
    is_int = int(variant.sums is V_I32)
    return types.boolean(variant), lambda context, builder, signature, arguments: v.I1(is_int)


@intrinsic
def is_coded(_: Any, variant: Any) -> Any:
    coded = int(variant.decode is not None)
    return types.boolean(variant), lambda context, builder, signature, arguments: v.I1(coded)


@intrinsic
def decoded(_: Any, variant: Any) -> Any:
    """The variant for words that `decode` made; any other one stays."""
    plain = variant.decoded
    return plain(variant), lambda context, builder, signature, arguments: context.get_dummy_value()


@intrinsic
def decode(_: Any, variant: Any, w: Any, steps: Any, words: Any) -> Any:
    """words [16 · steps, 32] of steps of codes from `w` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if variant.decode is None:
            return context.get_dummy_value()
        _, w, steps, words = arguments

        def step(k: Any, state: list[Any]) -> list[Any]:
            words_of = _words(builder, variant, builder.add(w, builder.mul(k, I64(CODED_STEP_BYTES))), (0, 1))
            out = builder.add(words, builder.mul(k, I64(CODED_WORDS * STEP_BYTES)))

            def word(j: Any, state: list[Any]) -> list[Any]:
                at = builder.add(out, builder.mul(j, I64(STEP_BYTES)))
                for half, made in enumerate(words_of(j)):
                    v.store(builder, made, builder.add(at, I64(64 * half)), 64)
                return state

            return _loop(builder, I64(CODED_WORDS), state, word)

        _loop(builder, steps, [], step)
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 3), generate


@intrinsic
def tile(_: Any, variant: Any, rows: Any, x: Any, stride: Any, w: Any, steps: Any, sums: Any, ahead: Any, share: Any):
    """sums [rows, 32] += x · w, of 1 to `most_rows` rows.

    `x` are rows of 32-bit words, `stride` bytes apart; `w` is a block of words [steps, 32], or of codes. `ahead` is
    memory that is wanted soon; the tile asks for `share` bytes of it a step.
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
