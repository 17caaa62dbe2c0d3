"""Memory by address and vectors of 16, for compiled CPU loops.

Scalars: `word`, `load_*`, `store_*` read and write at address + index · size. bfloat16 is float32's upper half,
rounded to nearest, ties to even.

Vectors: `floats` (16 × float32) and `ints` (16 × int32) are values that compiled code holds in variables, adds and
multiplies with + - *; one 512-bit register where there are such, else as many smaller ones as it takes. With
`count` a load gives 0 behind the first `count` lanes and a store leaves the others alone; neither touches memory
there.

Emission: the functions without a numba decorator take a builder and write LLVM IR, for whoever emits a whole
kernel in a Python loop (kernels/linear/tiles.py). `dot_bfloat16_pairs` and a native `dot_byte_quads` are single
instructions, of CPUs with `HAS_BFLOAT16_DOT` and `HAS_BYTE_DOT`. Knows nothing of ops or layers.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic, models, overload, register_model

LANES = 16


def features(flags: str) -> dict[str, bool]:
    """"+fma,-avx512f" as a dict."""
    return {flag[1:]: flag[0] == "+" for flag in flags.split(",") if flag[:1] in ("+", "-")}


# What numba compiles for: this machine's, or what NUMBA_CPU_FEATURES and NUMBA_ENABLE_AVX say. Of a NUMBA_CPU_NAME
# alone it isn't known what it has beyond the features given; the portable code is right for all.
FEATURES = features(cpu_target.target_context.codegen().magic_tuple()[2])
# Vectors of 512 bits in one register.
HAS_WIDE = bool(FEATURES.get("avx512f") and FEATURES.get("avx512bw"))
HAS_BFLOAT16_DOT = HAS_WIDE and bool(FEATURES.get("avx512bf16"))
HAS_BYTE_DOT = HAS_WIDE and bool(FEATURES.get("avx512vnni"))
# Multiplies pairs of 16 bits and adds each two products.
HAS_PAIR_SUMS = bool(FEATURES.get("avx2"))
# Without it a fused multiply-add would be a library call; then it is a multiplication and an addition.
HAS_FMA = any(FEATURES.get(name) for name in ("fma", "neon", "fp-armv8"))

I1, I8, I16, I32, I64, F32 = (
    ir.IntType(1),
    ir.IntType(8),
    ir.IntType(16),
    ir.IntType(32),
    ir.IntType(64),
    ir.FloatType(),
)


class Bfloat(ir.Type):
    """LLVM's bfloat, which llvmlite has no name for. Only for arguments of LLVM's own functions: bitcast to it."""

    def _to_string(self) -> str:
        return "bfloat"

    __str__ = _to_string

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bfloat)

    def __hash__(self) -> int:
        return hash("bfloat")


V_F32, V_I32, V_I16, V_I8, V_I1 = (ir.VectorType(t, LANES) for t in (F32, I32, I16, I8, I1))
_V_BF = ir.VectorType(Bfloat(), 2 * LANES)
V_PAIRS, _V_HALF_I32 = ir.VectorType(I16, 2 * LANES), ir.VectorType(I32, LANES // 2)


def compiled_for(name: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """numba.njit for a function that is made more than once, such as for each kind of numbers; `name` tells which.

    Code kept on disk is linked by the names of functions: with the same one, a program that uses two of them would run
    the code of the first it loads.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        function.__qualname__ = f"{function.__qualname__}.{name}"
        return numba.njit(**options)(function)

    return decorate


# Emission ------------------------------------------------------------------------------------------------


def at(builder: Any, address: Any, kind: Any) -> Any:
    """A pointer to a value of `kind` at an int64 address."""
    return builder.inttoptr(address, kind.as_pointer())


def load(builder: Any, address: Any, kind: Any, align: int = 1) -> Any:
    return builder.load(at(builder, address, kind), align=align)


def store(builder: Any, value: Any, address: Any, align: int = 1) -> None:
    builder.store(value, at(builder, address, value.type), align=align)


def splat(builder: Any, scalar: Any) -> Any:
    """A scalar in all 16 lanes."""
    vector = ir.VectorType(scalar.type, LANES)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, I32(0))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), ir.Constant(V_I32, None))


def constant(kind: Any, value: Any) -> Any:
    """The same constant in all lanes of a vector type."""
    return ir.Constant(kind, [ir.Constant(kind.element, value)] * kind.count)


def call(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """A function of LLVM or of the C library."""
    shape = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, shape, name), arguments)


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c, lane by lane; rounded once where the CPU can."""
    return call(builder, "llvm.fma.v16f32" if HAS_FMA else "llvm.fmuladd.v16f32", V_F32, [a, b, c])


def low_bfloat16(builder: Any, pairs: Any) -> Any:
    """Of 16 pairs of bfloat16, each in an int32, the first ones as floats."""
    return builder.bitcast(builder.shl(pairs, constant(V_I32, 16)), V_F32)


def high_bfloat16(builder: Any, pairs: Any) -> Any:
    """The second ones."""
    return builder.bitcast(builder.and_(pairs, constant(V_I32, 0xFFFF0000)), V_F32)


def dot_bfloat16_pairs(builder: Any, sums: Any, a: Any, b: Any) -> Any:
    """sums + a₀·b₀ + a₁·b₁ for 16 pairs of bfloat16 in `ints`: one instruction where `HAS_BFLOAT16_DOT`."""
    if not HAS_BFLOAT16_DOT:
        sums = fma(builder, high_bfloat16(builder, a), high_bfloat16(builder, b), sums)
        return fma(builder, low_bfloat16(builder, a), low_bfloat16(builder, b), sums)
    a, b = builder.bitcast(a, _V_BF), builder.bitcast(b, _V_BF)
    return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", V_F32, [sums, a, b])


def dot_byte_quads(builder: Any, sums: Any, a: Any, b: Any, native: bool) -> Any:
    """sums + Σ aᵢ·bᵢ over four bytes, a unsigned and b signed, for 16 quads in `ints`. Exact."""
    if native:
        return call(builder, "llvm.x86.avx512.vpdpbusd.512", V_I32, [sums, a, b])
    if HAS_PAIR_SUMS:
        return _dot_byte_quads_in_pairs(builder, sums, a, b)
    for byte in range(4):
        x = builder.and_(builder.lshr(a, constant(V_I32, 8 * byte)), constant(V_I32, 0xFF))
        w = builder.ashr(builder.shl(b, constant(V_I32, 24 - 8 * byte)), constant(V_I32, 24))
        sums = builder.add(sums, builder.mul(x, w))
    return sums


def _dot_byte_quads_in_pairs(builder: Any, sums: Any, a: Any, b: Any) -> Any:
    """The same: bytes 0 and 2 of a quad as 16 bits each, then 1 and 3. (An instruction that takes bytes would saturate:
    two products have up to 17 bits.)"""
    a, b = builder.bitcast(a, V_PAIRS), builder.bitcast(b, V_PAIRS)
    eight = constant(V_PAIRS, 8)
    first = builder.and_(a, constant(V_PAIRS, 0xFF)), builder.ashr(builder.shl(b, eight), eight)
    second = builder.lshr(a, eight), builder.ashr(b, eight)
    for x, w in (first, second):
        sums = builder.add(sums, _pair_sums(builder, x, w))
    return sums


def _pair_sums(builder: Any, a: Any, b: Any) -> Any:
    """a₀·b₀ + a₁·b₁ for 16 pairs of 16 bits, in registers of 256 bits."""
    parts = []
    for begin in (0, LANES):
        lanes = ir.Constant(V_I32, [I32(begin + lane) for lane in range(LANES)])
        halves = [builder.shuffle_vector(each, ir.Constant(V_PAIRS, ir.Undefined), lanes) for each in (a, b)]
        parts.append(call(builder, "llvm.x86.avx2.pmadd.wd", _V_HALF_I32, halves))
    return builder.shuffle_vector(*parts, ir.Constant(V_I32, [I32(lane) for lane in range(LANES)]))


def round_to_bfloat16(builder: Any, value: Any) -> Any:
    """The bits of 16 floats as bfloat16, <16 x i16>."""
    bits = builder.bitcast(value, V_I32)
    even = builder.and_(builder.lshr(bits, constant(V_I32, 16)), constant(V_I32, 1))
    bits = builder.add(builder.add(bits, constant(V_I32, 0x7FFF)), even)
    return builder.trunc(builder.lshr(bits, constant(V_I32, 16)), V_I16)


def first_lanes(builder: Any, count: Any) -> Any:
    """The mask of the first `count` (int64) lanes."""
    lanes = ir.Constant(V_I32, [ir.Constant(I32, lane) for lane in range(LANES)])
    return builder.icmp_signed("<", lanes, splat(builder, builder.trunc(count, I32)))


def masked_load(builder: Any, address: Any, kind: Any, mask: Any) -> Any:
    """Lanes outside the mask are 0; their memory is not touched."""
    arguments = [at(builder, address, kind), I32(1), mask, ir.Constant(kind, None)]
    return call(builder, f"llvm.masked.load.{_suffix(kind)}.p0", kind, arguments)


def masked_store(builder: Any, value: Any, address: Any, mask: Any) -> None:
    arguments = [value, at(builder, address, value.type), I32(1), mask]
    call(builder, f"llvm.masked.store.{_suffix(value.type)}.p0", ir.VoidType(), arguments)


def _suffix(kind: Any) -> str:
    return f"v{kind.count}{'f32' if kind.element == F32 else f'i{kind.element.width}'}"


def emit_prefetch(builder: Any, address: Any, locality: int = 2) -> None:
    """Bring a line nearer: locality 3 into the first cache, 2 into the second."""
    call(builder, "llvm.prefetch.p0", ir.VoidType(), [at(builder, address, I8), I32(0), I32(locality), I32(1)])


def _indexed(builder: Any, address: Any, index: Any, size: int) -> Any:
    return builder.add(address, builder.mul(index, I64(size)))


# Scalars -------------------------------------------------------------------------------------------------


def _scalar_load(result: Any, kind: Any) -> Callable[..., Any]:
    def typing(_: Any, address: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return load(builder, _indexed(builder, *arguments, size), kind)

        return result(types.int64, types.int64), generate

    size = result.bitwidth // 8
    return intrinsic(typing)


def _scalar_store(value_type: Any) -> Callable[..., Any]:
    def typing(_: Any, address: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            store(builder, arguments[2], _indexed(builder, *arguments[:2], size))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, value_type), generate

    size = value_type.bitwidth // 8
    return intrinsic(typing)


word = load_i64 = _scalar_load(types.int64, I64)
load_i32 = _scalar_load(types.int32, I32)
load_u8 = _scalar_load(types.uint8, I8)
load_f32 = _scalar_load(types.float32, F32)
store_i64 = _scalar_store(types.int64)
store_i32 = _scalar_store(types.int32)
store_u8 = _scalar_store(types.uint8)
store_f32 = _scalar_store(types.float32)


@intrinsic
def load_bf16(_: Any, address: Any, index: Any) -> Any:
    """As float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.zext(load(builder, _indexed(builder, *arguments, 2), I16), I32)
        return builder.bitcast(builder.shl(bits, I32(16)), F32)

    return types.float32(types.int64, types.int64), generate


@intrinsic
def store_bf16(_: Any, address: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[2], I32)
        even = builder.and_(builder.lshr(bits, I32(16)), I32(1))
        bits = builder.lshr(builder.add(builder.add(bits, I32(0x7FFF)), even), I32(16))
        store(builder, builder.trunc(bits, I16), _indexed(builder, *arguments[:2], 2))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), generate


@intrinsic
def float_in(_: Any, word: Any) -> Any:
    """The float32 whose bits are the low half of a word: how an op's words carry one (`bits_of_float`)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.trunc(arguments[0], I32), F32)

    return types.float32(types.int64), generate


def bits_of_float(value: float) -> int:
    """What `float_in` reads back."""
    return int(np.float32(value).view(np.uint32))


@intrinsic
def prefetch(_: Any, address: Any) -> Any:
    """Ask for a line of memory, into the second cache; any address is allowed."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit_prefetch(builder, arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64), generate


def scratch(size: int) -> Callable[..., Any]:
    """What gives the address of `size` bytes of the calling compiled function's own stack, at a multiple of 64. They
    hold anything."""

    def typing(_: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            # Not by cgutils.alloca_once: it clears the memory at every call.
            with builder.goto_entry_block():
                memory = builder.alloca(ir.ArrayType(I8, size + 64))
            address = builder.ptrtoint(memory, I64)
            return builder.and_(builder.add(address, I64(63)), I64(-64))

        return types.int64(), generate

    return intrinsic(typing)


# Vectors -------------------------------------------------------------------------------------------------


class _Vector(types.Type):
    def __init__(self, name: str, element: Any) -> None:
        super().__init__(name)
        self.element = element


floats = _Vector("floats16", types.float32)
ints = _Vector("ints16", types.int32)


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, V_F32 if kind.element is types.float32 else V_I32)


def _emits(result: Any, *parameters: Any) -> Callable[[Callable[..., Any]], Any]:
    """An intrinsic of these types out of a function (builder, *arguments) -> value."""

    def decorate(emit: Callable[..., Any]) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = emit(builder, *arguments)
            return context.get_dummy_value() if result is types.void else value

        def typing(context: Any, *_: Any) -> Any:
            return result(*parameters), generate

        names = list(inspect.signature(emit).parameters)
        # numba counts the parameters by the signature; its first is the typing context, `emit`'s is the builder.
        typing.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        )
        typing.__name__, typing.__doc__ = emit.__name__, emit.__doc__
        return intrinsic(typing)

    return decorate


@_emits(floats)
def zeros(builder):
    return ir.Constant(V_F32, None)


@_emits(ints)
def int_zeros(builder):
    return ir.Constant(V_I32, None)


@_emits(ints, ints, ints)
def and_ints(builder, a, b):
    return builder.and_(a, b)


@_emits(floats, types.float32)
def spread(builder, value):
    """The value in all lanes."""
    return splat(builder, value)


@_emits(ints, types.int32)
def spread_int(builder, value):
    return splat(builder, value)


@_emits(floats, types.int64, types.int64)
def load_floats(builder, address, index):
    """16 × float32."""
    return load(builder, _indexed(builder, address, index, 4), V_F32)


@_emits(floats, types.int64, types.int64, types.int64)
def load_floats_part(builder, address, index, count):
    return masked_load(builder, _indexed(builder, address, index, 4), V_F32, first_lanes(builder, count))


@_emits(types.void, types.int64, types.int64, floats)
def store_floats(builder, address, index, value):
    store(builder, value, _indexed(builder, address, index, 4))


@_emits(types.void, types.int64, types.int64, floats, types.int64)
def store_floats_part(builder, address, index, value, count):
    masked_store(builder, value, _indexed(builder, address, index, 4), first_lanes(builder, count))


@_emits(ints, types.int64, types.int64)
def load_ints(builder, address, index):
    """16 × int32; also 16 pairs of bfloat16, or 16 quads of bytes."""
    return load(builder, _indexed(builder, address, index, 4), V_I32)


@_emits(types.void, types.int64, types.int64, ints)
def store_ints(builder, address, index, value):
    store(builder, value, _indexed(builder, address, index, 4))


def _widen_bfloat16(builder, bits):
    return builder.bitcast(builder.shl(builder.zext(bits, V_I32), constant(V_I32, 16)), V_F32)


@_emits(floats, types.int64, types.int64)
def load_bfloat16(builder, address, index):
    """16 × bfloat16, as floats."""
    return _widen_bfloat16(builder, load(builder, _indexed(builder, address, index, 2), V_I16))


@_emits(floats, types.int64, types.int64, types.int64)
def load_bfloat16_part(builder, address, index, count):
    bits = masked_load(builder, _indexed(builder, address, index, 2), V_I16, first_lanes(builder, count))
    return _widen_bfloat16(builder, bits)


@_emits(types.void, types.int64, types.int64, floats)
def store_bfloat16(builder, address, index, value):
    store(builder, round_to_bfloat16(builder, value), _indexed(builder, address, index, 2))


@_emits(types.void, types.int64, types.int64, floats, types.int64)
def store_bfloat16_part(builder, address, index, value, count):
    bits = round_to_bfloat16(builder, value)
    masked_store(builder, bits, _indexed(builder, address, index, 2), first_lanes(builder, count))


@numba.njit(inline="always")
def load_part(address, index, count, bfloat16):
    """The first `count` lanes, or all 16 where there are more, of bfloat16 or of float32.

    A whole vector goes without masks: where no instruction has them, they are a branch for each lane.
    """
    if count >= LANES:
        if bfloat16:
            return load_bfloat16(address, index)
        return load_floats(address, index)
    if bfloat16:
        return load_bfloat16_part(address, index, count)
    return load_floats_part(address, index, count)


@numba.njit(inline="always")
def store_part(address, index, value, count, bfloat16):
    """`load_part`'s twin."""
    if count >= LANES:
        if bfloat16:
            store_bfloat16(address, index, value)
        else:
            store_floats(address, index, value)
    elif bfloat16:
        store_bfloat16_part(address, index, value, count)
    else:
        store_floats_part(address, index, value, count)


@_emits(types.void, types.int64, types.int64, ints)
def store_bytes(builder, address, index, value):
    """The low bytes of 16 ints."""
    store(builder, builder.trunc(value, V_I8), builder.add(address, index))


@_emits(types.void, types.int64, types.int64, ints, types.int64)
def store_bytes_part(builder, address, index, value, count):
    masked_store(builder, builder.trunc(value, V_I8), builder.add(address, index), first_lanes(builder, count))


@_emits(floats, floats, floats, floats)
def multiply_add(builder, a, b, c):
    """a · b + c."""
    return fma(builder, a, b, c)


@_emits(floats, ints)
def to_floats(builder, value):
    return builder.sitofp(value, V_F32)


@_emits(ints, floats)
def to_ints(builder, value):
    """Rounded to nearest, ties to even; the nearest int of what is out of range, 0 of NaN.

    Of LLVM's saturating conversion a CPU without an instruction for it makes 16 scalar ones.
    """
    value = call(builder, "llvm.rint.v16f32", V_F32, [value])
    over = builder.fcmp_ordered(">", value, constant(V_F32, 2147483520.0))
    under = builder.fcmp_ordered("<", value, constant(V_F32, -2147483648.0))
    inside = builder.fcmp_ordered("ord", value, value)
    inside = builder.and_(inside, builder.not_(builder.or_(over, under)))
    whole = builder.fptosi(builder.select(inside, value, constant(V_F32, 0.0)), V_I32)
    whole = builder.select(over, constant(V_I32, 2**31 - 1), whole)
    return builder.select(under, constant(V_I32, -(2**31)), whole)


@_emits(floats, ints)
def as_floats(builder, value):
    """The same bits."""
    return builder.bitcast(value, V_F32)


@_emits(ints, floats)
def as_ints(builder, value):
    return builder.bitcast(value, V_I32)


@_emits(floats, floats, floats)
def maximum(builder, a, b):
    """Where either is NaN, b."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@_emits(floats, floats)
def absolute(builder, value):
    return call(builder, "llvm.fabs.v16f32", V_F32, [value])


def _halves(builder, value, combine):
    """One lane out of 16 by folding the upper half onto the lower: always in the same order."""
    width = LANES
    while width > 1:
        width //= 2
        lanes = [ir.Constant(I32, lane + width) for lane in range(width)]
        # Lanes that nobody reads again.
        lanes += [ir.Constant(I32, 0)] * (LANES - width)
        value = combine(value, builder.shuffle_vector(value, value, ir.Constant(V_I32, lanes)))
    return builder.extract_element(value, I32(0))


@_emits(types.float32, floats)
def total(builder, value):
    """The sum of the lanes, upper half onto lower half until one is left."""
    return _halves(builder, value, builder.fadd)


@_emits(types.float32, floats)
def largest(builder, value):
    return _halves(builder, value, lambda a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))


@_emits(types.float32, floats, types.int64)
def lane(builder, value, index):
    return builder.extract_element(value, builder.trunc(index, I32))


@_emits(floats, floats)
def exps(builder, value):
    """e**x in every lane, to about 2e-7 of the value; nearly 0 under -87, above 87 as at 87.

    2**(x·log2 e) = 2**whole · 2**part: the whole goes into the exponent bits, the part (-½..½) through a polynomial.
    ln 2 in two parts, of which the first has few bits.
    """

    def number(x):
        return constant(V_F32, float(np.float32(x)))

    def least(a, b):
        return builder.select(builder.fcmp_ordered("<", a, b), a, b)

    def most(a, b):
        return builder.select(builder.fcmp_ordered(">", a, b), a, b)

    x = least(most(value, number(-87.3)), number(87.0))
    whole = call(builder, "llvm.rint.v16f32", V_F32, [builder.fmul(x, number(1.44269504))])
    part = fma(builder, whole, number(-0.693359375), x)
    part = fma(builder, whole, number(2.12194440e-4), part)
    total = number(1.9875691500e-4)
    for factor in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        total = fma(builder, total, part, number(factor))
    total = fma(builder, total, builder.fmul(part, part), builder.fadd(part, number(1.0)))
    power = builder.shl(builder.add(builder.fptosi(whole, V_I32), constant(V_I32, 127)), constant(V_I32, 23))
    return builder.fmul(total, builder.bitcast(power, V_F32))


def _operator(symbol: Any, kind: Any, name: str) -> None:
    def emit(builder, a, b):
        return getattr(builder, name)(a, b)

    compute = _emits(kind, kind, kind)(emit)

    # numba compares signatures with the annotations in them, so this has none.
    @overload(symbol, inline="always")
    def _(a, b):
        if a == kind and b == kind:
            return lambda a, b: compute(a, b)
        return None


for _symbol, _name in ((operator.add, "add"), (operator.sub, "sub"), (operator.mul, "mul")):
    _operator(_symbol, floats, f"f{_name}")
    _operator(_symbol, ints, _name)
_operator(operator.truediv, floats, "fdiv")
