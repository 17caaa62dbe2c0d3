"""Vectors and memory by address against numpy."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch

from kernels import cpu_vectors as v


def compiled(function):
    return numba.njit(error_model="numpy")(function)


def address(array) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr()


@compiled
def _scalars(a, b):
    v.store_f32(b, 0, v.load_f32(a, 1))
    v.store_bf16(b, 2, v.load_f32(a, 2))
    v.store_f32(b, 2, v.load_bf16(b, 2))
    v.store_i32(b, 3, v.load_i32(a, 3))
    v.store_u8(b, 18, v.load_u8(a, 18))
    v.store_i64(b, 3, v.word(a, 3))
    v.prefetch(a)
    return v.load_u8(a, 19)


def test_scalars_are_read_and_written_where_they_belong() -> None:
    a = np.array([0, 1.5, 1.00390625, 3, -7.25, 0, -1.1, 6], np.float32)
    b = np.zeros(8, np.float32)
    byte = _scalars(address(a), address(b))
    assert b[0] == 1.5 and b[3] == 3 and b[2] == 1.0  # the tie goes to the even one
    assert b.view(np.uint8)[18] == a.view(np.uint8)[18] == 0xE8
    assert b[6:].tolist() == a[6:].tolist()
    assert byte == a.view(np.uint8)[19] == 0xC0


@compiled
def _round_trip(a, b, count):
    v.store_bfloat16(b, 0, v.load_floats(a, 0))
    v.store_floats(a, 0, v.load_bfloat16(b, 0))
    v.store_bfloat16_part(b, 16, v.load_floats_part(a, 16, count), count)
    v.store_floats_part(a, 16, v.load_bfloat16_part(b, 16, count), count)


@pytest.mark.parametrize("count", [0, 1, 7, 15, 16])
def test_bfloat16_rounds_like_torch_and_parts_leave_the_rest_alone(count: int) -> None:
    a = torch.randn(48) * 100
    a[:4] = torch.tensor([float("inf"), -0.0, 1e-40, float("nan")])
    b = torch.full((48,), 7.0, dtype=torch.bfloat16)
    truth, behind = a.bfloat16(), a.clone()
    _round_trip(address(a), address(b), count)
    # NaN stays NaN, with whatever bits.
    assert bool(b[3].isnan())
    b[3] = truth[3] = 0
    assert torch.equal(b[: 16 + count].view(torch.int16), truth[: 16 + count].view(torch.int16))
    assert bool((b[16 + count :] == 7).all())
    assert torch.equal(a[16 + count :], behind[16 + count :])
    a[3] = 0
    assert torch.equal(a[: 16 + count], truth[: 16 + count].float())


@compiled
def _copy(a, a_bfloat16, b, b_bfloat16, count):
    v.store_part(b, 2, v.load_part(a, 1, count, a_bfloat16), count, b_bfloat16)
    # All lanes of what was loaded.
    v.store_floats(b, 32, v.load_part(a, 1, count, a_bfloat16))


@pytest.mark.parametrize("count", [1, 15, 16, 40])
@pytest.mark.parametrize("kinds", [(k, other) for k in (False, True) for other in (False, True)])
def test_a_part_is_of_either_kind_and_no_more_than_a_vector(kinds: tuple[bool, bool], count: int) -> None:
    source, target = (torch.bfloat16 if kind else torch.float32 for kind in kinds)
    a, b = torch.randn(40).to(source), torch.full((96,), 7.0).to(target)
    _copy(address(a), kinds[0], address(b), kinds[1], count)
    taken = a[1 : 1 + min(count, 16)]
    assert torch.equal(b[2 : 2 + len(taken)], taken.to(target))
    assert bool((b[:2] == 7).all()) and bool((b[2 + len(taken) : 32] == 7).all())
    lanes = b.view(torch.uint8)[128:192].view(torch.float32)
    assert torch.equal(lanes, torch.cat([taken.float(), torch.zeros(16 - len(taken))]))


@compiled
def _arithmetic(a, b, out):
    x, y = v.load_floats(a, 0), v.load_floats(b, 0)
    v.store_floats(out, 0, x + y)
    v.store_floats(out, 16, x - y)
    v.store_floats(out, 32, x * y)
    v.store_floats(out, 48, x / y)
    v.store_floats(out, 64, v.multiply_add(x, y, v.spread(np.float32(2.0))))
    v.store_floats(out, 80, v.maximum(x, y))
    v.store_floats(out, 96, v.absolute(x))
    v.store_floats(out, 112, v.exps(x))
    v.store_ints(out, 128, v.to_ints(x))
    v.store_bytes(out, 144 * 4, v.to_ints(x) + v.spread_int(128))
    return v.total(x), v.largest(x), v.lane(x, 5)


def test_lanes_compute_what_numpy_does() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(0, 20, (2, 16)).astype(np.float32)
    a[0], a[1] = 2.5, -3.5
    out = np.full(180, np.nan, np.float32)
    total, largest, fifth = _arithmetic(address(a), address(b), address(out))
    rows = [a + b, a - b, a * b, a / b, None, np.maximum(a, b), np.abs(a)]
    for row, expected in enumerate(rows):
        if expected is not None:
            assert out[row * 16 : row * 16 + 16].tolist() == expected.tolist(), row
    np.testing.assert_allclose(out[64:80], a.astype(np.float64) * b + 2, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(out[112:128], np.exp(a.astype(np.float64)), rtol=3e-7)
    assert out[128:144].view(np.int32).tolist() == np.rint(a).astype(np.int32).tolist()
    bytes_ = (np.rint(a).astype(np.int32) + 128).astype(np.uint8)
    assert out.view(np.uint8)[576:592].tolist() == bytes_.tolist()
    half = a[:8] + a[8:]
    half = half[:4] + half[4:]
    half = half[:2] + half[2:]
    assert total == half[0] + half[1]
    assert largest == a.max() and fifth == a[5]


@pytest.mark.skipif(not v.HAS_BFLOAT16_DOT, reason="this CPU doesn't multiply pairs of bfloat16")
def test_pairs_of_bfloat16_are_multiplied_and_added() -> None:
    dot = v._emits(v.floats, v.floats, v.ints, v.ints)(v.dot_bfloat16_pairs)

    @compiled
    def dots(a, b, out):
        v.store_floats(out, 0, dot(v.zeros(), v.load_ints(a, 0), v.load_ints(b, 0)))

    a, b, out = torch.randn(32).bfloat16(), torch.randn(32).bfloat16(), np.zeros(16, np.float32)
    dots(address(a), address(b), address(out))
    expected = (a.double() * b.double()).view(16, 2).sum(1)
    np.testing.assert_allclose(out, expected.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("way", ["one instruction", "16-bit products", "shifts"])
def test_quads_of_bytes_are_multiplied_and_added_exactly(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not {"one instruction": v.HAS_BYTE_DOT, "16-bit products": v.HAS_PAIR_SUMS}.get(way, True):
        pytest.skip("this CPU has no such instruction")

    def emit(builder, sums, a, b):
        with monkeypatch.context() as patch:
            patch.setattr(v, "HAS_PAIR_SUMS", way == "16-bit products")
            return v.dot_byte_quads(builder, sums, a, b, native=way == "one instruction")

    dot = v._emits(v.ints, v.ints, v.ints, v.ints)(emit)

    @compiled
    def dots(x, w, out):
        v.store_ints(out, 0, dot(v.spread_int(3), v.load_ints(x, 0), v.load_ints(w, 0)))

    rng = np.random.default_rng(2)
    x, w = rng.integers(0, 256, 64).astype(np.uint8), rng.integers(-128, 128, 64).astype(np.int8)
    x[:4], w[:4] = 255, -128
    out = np.zeros(16, np.int32)
    dots(address(x), address(w), address(out))
    assert (out - 3).tolist() == (x.astype(np.int32) * w).reshape(16, 4).sum(1).tolist()


_stack = v.scratch(256)  # bytes


@compiled
def _on_the_stack(word):
    place = _stack()
    v.store_floats(place, 48, v.spread(v.float_in(word)))
    return place, v.load_f32(place, 63)


def test_scratch_is_aligned_and_words_carry_floats() -> None:
    place, value = _on_the_stack(v.bits_of_float(-1.25))
    assert place % 64 == 0 and value == -1.25
