"""Logarithm, exponential and masses: good enough, and the same bits as single float32 operations give anywhere."""

from __future__ import annotations

import math

import numpy as np
import torch

from kernels.verify.numbers import LEAST_EXPONENT, LN_UNIT, UNIT, as_mass, exp, ln, mass

F = np.float32
BELOW = torch.cat([torch.linspace(-28.0, 0.0, 300_001), -torch.logspace(-12, 1.4, 100_000)])


def test_the_logarithm_is_as_good_as_float32_can_hold_it() -> None:
    x = torch.cat([torch.logspace(-10, 1.3, 100_000, dtype=torch.float32), torch.tensor([1.0, 0.99999994, 1.0000001])])
    true = x.double().log()
    assert ((ln(x).double() - true).abs() / (true.abs() + 1)).max() < 1.5e-7
    assert ln(torch.tensor([1.0])).item() == 0.0


def test_the_logarithm_holds_from_the_smallest_residual_to_the_largest_total() -> None:
    x = torch.logspace(-12.1, 17.6, 200_000, dtype=torch.float64).float()
    true = x.double().log()
    assert ((ln(x).double() - true).abs() / (true.abs() + 1)).max() < 1.5e-7


def test_the_exponential_is_as_good_as_float32_can_hold_it() -> None:
    true = BELOW.double().exp()
    assert ((exp(BELOW).double() - true).abs() / true).max() < 2e-7
    assert exp(torch.zeros(1)).item() == 1.0


def test_the_exponential_never_passes_one() -> None:
    """What is less likely than the likeliest has no larger mass."""
    assert exp(BELOW).max().item() == 1.0
    assert mass(BELOW).max().item() == UNIT


def numpy_ln(x: np.float32) -> np.float32:
    """README.md's lines, one operation each: an oracle that shares no code and no library with ours."""
    bits = int(x.view(np.int32))
    e = (bits - 0x3F3504F3) >> 23
    m = np.int32(bits - (e << 23)).view(F)
    s = (m - F(1)) / (m + F(1))
    z = s * s
    t = ((z * F(0.29590693) + F(0.39988395)) * z + F(0.66666688)) * z * s
    return t + s + s + F(e) * F(0.6931471805599453)


def numpy_exp(x: np.float32) -> np.float32:
    n = (x * F(1.4426950408889634) + F(12582912)) - F(12582912)
    r = (x - n * F(0.693359375)) - n * F(-2.12194440e-4)
    p = r * F(1.9875691500e-4) + F(1.3981999507e-3)
    for c in (8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + F(c)
    p = p * (r * r) + r + F(1)
    return np.int32(int(p.view(np.int32)) + (int(n) << 23)).view(F)


def test_every_operation_is_rounded_by_itself() -> None:
    """A fused multiply-add anywhere, or another order, would show in some of these bits."""
    generator = torch.Generator().manual_seed(1)
    below = torch.rand(5000, generator=generator) * -28
    expected = np.array([numpy_exp(x) for x in below.numpy()])
    assert np.array_equal(exp(below).numpy().view(np.int32), expected.view(np.int32))
    positive = torch.exp(torch.randn(5000, generator=generator) * 8)
    expected = np.array([numpy_ln(x) for x in positive.numpy()])
    assert np.array_equal(ln(positive).numpy().view(np.int32), expected.view(np.int32))


def test_a_row_of_any_length_gives_each_element_the_same_bits() -> None:
    """Vectorised parts and their tails must agree, or an id's mass would depend on the vocabulary's size."""
    for size in (1, 3, 7, 8, 9, 31, 1000):
        assert torch.equal(exp(BELOW[:size]), exp(BELOW)[:size])
        assert torch.equal(ln(exp(BELOW[:size])), ln(exp(BELOW))[:size])


def test_the_likeliest_token_has_one_unit_and_far_ones_have_nothing() -> None:
    below = torch.tensor([0.0, -math.log(2), LEAST_EXPONENT, -28.000002, -1e30, -math.inf])
    masses = mass(below).tolist()
    assert masses[0] == UNIT == 2**40
    assert abs(masses[1] - UNIT // 2) < UNIT * 1e-7
    assert masses[2] == int(UNIT * math.exp(-28.0)) == 0, "e**-28 of a unit is less than one"
    assert masses[3:] == [0, 0, 0]


def test_masses_are_cut_towards_zero() -> None:
    fractions = torch.tensor([2.0**-40, 1.9 * 2.0**-40, 2.0**-41, -(2.0**-40), -1.9 * 2.0**-40, 1.5, 0.0])
    assert as_mass(fractions).tolist() == [1, 1, 0, -1, -1, 3 << 39, 0]


def test_the_largest_sum_of_masses_fits_its_word() -> None:
    """2**20 ids that are all the likeliest: 2**60 of 2**63."""
    assert int(mass(torch.zeros(1 << 20)).sum()) == 1 << 60


def test_ln_unit_is_40_ln_2() -> None:
    assert float(F(40 * math.log(2))) == LN_UNIT
