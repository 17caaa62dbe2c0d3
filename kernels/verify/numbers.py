"""Arithmetic that gives the same bits everywhere: each operation is one IEEE operation, rounded to nearest, in the
order written, never fused. Probabilities are integers ("masses"), whose sums don't depend on the order of additions.
README.md beside this file is the specification.
"""

from __future__ import annotations

import torch

# The mass of the most probable token.
UNIT = 1 << 40
# Further below the most probable token a mass is 0.
LEAST_EXPONENT = -28.0
# Adding and taking it away rounds a small float32 to a whole number, half to even.
_ROUNDING = 12582912.0
LN_2 = 0.6931471805599453
LN_UNIT = 27.725887298583984  # 40 ln 2


def ln(x: torch.Tensor) -> torch.Tensor:
    """Natural logarithm of positive normal float32; error up to 1.1e-7 * (|ln x| + 1).

    x = m * 2**e with m in [0.7071, 1.4142); s = (m - 1) / (m + 1); ln m = 2s + s**3 * (2/3 + ...).
    """
    bits = x.view(torch.int32)
    exponent = (bits - 0x3F3504F3) >> 23
    m = (bits - (exponent << 23)).view(torch.float32)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    t = ((z * 0.29590693 + 0.39988395) * z + 0.66666688) * z * s
    return t + s + s + exponent.to(torch.float32) * LN_2


def exp(x: torch.Tensor) -> torch.Tensor:
    """e**x of float32 in [-28, 0]; relative error up to 2e-7, and exactly 1 at 0.

    x = n * ln 2 + r with n whole and |r| <= 0.3466; e**r by a polynomial, 2**n by the exponent's bits.
    """
    n = (x * 1.4426950408889634 + _ROUNDING) - _ROUNDING
    # ln 2 in two parts, so that n times the first one is exact.
    r = (x - n * 0.693359375) - n * -2.12194440e-4
    p = r * 1.9875691500e-4 + 1.3981999507e-3
    for c in (8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + c
    p = p * (r * r) + r + 1.0
    return (p.view(torch.int32) + (n.to(torch.int32) << 23)).view(torch.float32)


def mass(below: torch.Tensor) -> torch.Tensor:
    """Masses (int64) of tokens that lie this much (float32, at most 0) below the likeliest one."""
    near = below >= LEAST_EXPONENT
    fraction = exp(torch.where(near, below, 0.0))
    return torch.where(near, as_mass(fraction), 0)


def as_mass(fraction: torch.Tensor) -> torch.Tensor:
    """Float32 of any sign, as whole units, cut towards 0."""
    return (fraction * float(UNIT)).to(torch.int64)
