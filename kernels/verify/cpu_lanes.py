"""The arithmetic of numbers.py and noise.py on vectors of 16, for compiled CPU loops: the same bits.

Every operation is the one written there, rounded alone: nothing here may be fused, but for `reaches`, which only
bounds. Choices between lanes travel as `bits`: an int64 with one bit a lane.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types

from kernels.cpu_vectors import I1, I16, I32, I64, LANES, V_F32, V_I1, V_I32, call, constant, floats, fma, ints, splat
from kernels.cpu_vectors import _emits as emits
from kernels.verify.noise import MIX_1, MIX_2, WEYL
from kernels.verify.numbers import LEAST_EXPONENT, LN_2

_V_I64 = ir.VectorType(I64, LANES)
_LANE_NUMBERS = ir.Constant(V_I32, [I32(lane) for lane in range(LANES)])
# A mass is a fraction in units of 2**-40: two whole numbers of 20 bits, which 32-bit lanes hold and add.
HALF_UNIT = 1 << 20
# Lanes of `upper` and `lower` add so many times before they overflow.
MOST_SUMS = 1024


def _float(value):
    return constant(V_F32, float(np.float32(value)))


def _int(value):
    return constant(V_I32, value & 0xFFFFFFFF)


def _spread_low(builder, word):
    return splat(builder, builder.trunc(word, I32))


def _as_bits(builder, lanes):
    return builder.zext(builder.bitcast(lanes, I16), I64)


def _of_bits(builder, bits):
    return builder.bitcast(builder.trunc(bits, I16), V_I1)


# Lanes and bits --------------------------------------------------------------------------------------------


@emits(types.int64, floats, floats)
def at_least(builder, a, b):
    return _as_bits(builder, builder.fcmp_ordered(">=", a, b))


@emits(types.int64, floats, floats)
def above(builder, a, b):
    return _as_bits(builder, builder.fcmp_ordered(">", a, b))


@emits(types.int64, floats, floats)
def equal(builder, a, b):
    return _as_bits(builder, builder.fcmp_ordered("==", a, b))


@emits(types.int64, floats, floats)
def has_nan(builder, a, b):
    """Lanes where either is NaN."""
    return _as_bits(builder, builder.fcmp_unordered("uno", a, b))


@emits(types.int64, types.int64)
def below_count(builder, count):
    """The first `count` lanes; none where it is negative."""
    return _as_bits(builder, builder.icmp_signed("<", _LANE_NUMBERS, _spread_low(builder, count)))


@emits(floats, types.int64, floats, floats)
def choose(builder, bits, a, b):
    """a in the lanes of the bits, b in the others."""
    return builder.select(_of_bits(builder, bits), a, b)


@emits(types.int64, types.int64)
def lowest(builder, bits):
    """The first lane of bits that are not 0."""
    return builder.cttz(bits, I1(1))


@emits(types.int64, types.int64)
def count_of(builder, bits):
    return builder.ctpop(bits)


@emits(ints, types.int64)
def ids_from(builder, first):
    return builder.add(_spread_low(builder, first), _LANE_NUMBERS)


@emits(types.int64, ints)
def int_total(builder, value):
    """The sum of the lanes."""
    wide = builder.sext(value, _V_I64)
    return call(builder, "llvm.vector.reduce.add.v16i64", I64, [wide])


# numbers.py ------------------------------------------------------------------------------------------------


def _ln(builder, x):
    bits = builder.bitcast(x, V_I32)
    exponent = builder.ashr(builder.sub(bits, _int(0x3F3504F3)), _int(23))
    m = builder.bitcast(builder.sub(bits, builder.shl(exponent, _int(23))), V_F32)
    s = builder.fdiv(builder.fsub(m, _float(1.0)), builder.fadd(m, _float(1.0)))
    z = builder.fmul(s, s)
    t = builder.fadd(builder.fmul(z, _float(0.29590693)), _float(0.39988395))
    t = builder.fadd(builder.fmul(t, z), _float(0.66666688))
    t = builder.fmul(builder.fmul(t, z), s)
    t = builder.fadd(builder.fadd(t, s), s)
    return builder.fadd(t, builder.fmul(builder.sitofp(exponent, V_F32), _float(LN_2)))


@emits(floats, floats)
def lns(builder, x):
    return _ln(builder, x)


def _exp(builder, x):
    n = builder.fadd(builder.fmul(x, _float(1.4426950408889634)), _float(12582912.0))
    n = builder.fsub(n, _float(12582912.0))
    r = builder.fsub(x, builder.fmul(n, _float(0.693359375)))
    r = builder.fsub(r, builder.fmul(n, _float(-2.12194440e-4)))
    p = builder.fadd(builder.fmul(r, _float(1.9875691500e-4)), _float(1.3981999507e-3))
    for c in (8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = builder.fadd(builder.fmul(p, r), _float(c))
    p = builder.fadd(builder.fadd(builder.fmul(p, builder.fmul(r, r)), r), _float(1.0))
    power = builder.shl(builder.fptosi(n, V_I32), _int(23))
    return builder.bitcast(builder.add(builder.bitcast(p, V_I32), power), V_F32)


@emits(floats, floats, types.int64)
def fractions(builder, below, bits):
    """e**below in these lanes, as far as they are near enough to have a mass; 0 in the others. Not yet cut to whole
    units."""
    near = builder.and_(_of_bits(builder, bits), builder.fcmp_ordered(">=", below, _float(LEAST_EXPONENT)))
    zero = _float(0.0)
    return builder.select(near, _exp(builder, builder.select(near, below, zero)), zero)


def _scaled(builder, value):
    return builder.fmul(value, _float(float(HALF_UNIT)))


@emits(ints, floats)
def upper(builder, value):
    """The upper part of `as_mass`: as_mass(value) = upper · 2**20 + lower. |value| <= 1, and every step is exact."""
    return builder.fptosi(_scaled(builder, value), V_I32)


@emits(ints, floats, ints)
def lower(builder, value, high):
    rest = builder.fsub(_scaled(builder, value), builder.sitofp(high, V_F32))
    return builder.fptosi(_scaled(builder, rest), V_I32)


@emits(floats, floats)
def whole_units(builder, fraction):
    """A fraction's mass as float32, which holds it exactly: a float32 that was cut has no more bits than before."""
    high = builder.fptosi(_scaled(builder, fraction), V_I32)
    rest = builder.fsub(_scaled(builder, fraction), builder.sitofp(high, V_F32))
    low = builder.fptosi(_scaled(builder, rest), V_I32)
    return builder.fadd(_scaled(builder, builder.sitofp(high, V_F32)), builder.sitofp(low, V_F32))


# noise.py --------------------------------------------------------------------------------------------------


def _mix(builder, x):
    for shift, factor in ((16, MIX_1), (15, MIX_2)):
        x = builder.mul(builder.xor(x, builder.lshr(x, _int(shift))), _int(factor))
    return builder.xor(x, builder.lshr(x, _int(15)))


@emits(ints, ints, types.int64, types.int64, types.int64)
def hashes(builder, ids, k0, k1, k2):
    """32 random bits for each id under the key of a row."""
    x = _mix(builder, builder.mul(ids, _int(WEYL)))
    odd = _spread_low(builder, builder.or_(k1, I64(1)))
    x = _mix(builder, builder.mul(builder.xor(x, _spread_low(builder, k0)), odd))
    return builder.xor(x, _spread_low(builder, k2))


def _upper_bits(builder, hashed):
    return builder.sitofp(builder.lshr(hashed, _int(1)), V_F32)


@emits(floats, ints)
def chances(builder, hashed):
    """w of `gumbels` · 2**31, but for half a step."""
    return _upper_bits(builder, hashed)


@emits(floats, ints)
def gumbels(builder, hashed):
    w = builder.fmul(builder.fadd(_upper_bits(builder, hashed), _float(0.5)), _float(2.0**-31))
    most = _float(1.0 - 2.0**-24)
    w = builder.select(builder.fcmp_ordered(">", w, most), most, w)
    one = _float(1.0)
    rest = builder.fsub(one, w)
    lost = builder.fdiv(builder.fsub(w, builder.fsub(one, rest)), rest)
    return builder.fneg(_ln(builder, builder.fsub(lost, _ln(builder, rest))))


@emits(floats, floats, types.float32, types.float32)
def reaches(builder, x, factor, offset):
    """A number that is at least 2**((x · factor + offset) / 2**23 - 127), and at most 1.07 times that.

    It is the float32 with the bits x · factor + offset: its exponent is the power's whole part n, and 1 + f is at
    least 2**f for the part f that is left. 0 for what is too small for a float32; saturates above.
    """
    y = fma(builder, x, splat(builder, factor), splat(builder, offset))
    zero, most = _float(0.0), _float(254.0 * 2.0**23)
    y = builder.select(builder.fcmp_ordered(">", y, zero), y, zero)
    y = builder.select(builder.fcmp_ordered("<", y, most), y, most)
    return builder.bitcast(builder.fptosi(y, V_I32), V_F32)
