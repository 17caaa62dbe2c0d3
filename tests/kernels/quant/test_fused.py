"""Linears over coded weights in Triton against plain torch."""

from __future__ import annotations

import pytest
import torch

from kernels.gemm.ending import whole
from kernels.gemm.fused import BLOCK_M
from kernels.launch import architecture, power_of_two
from kernels.quant import fused, reference
from kernels.testing import assert_close, assert_same_bits, device, random

INPUTS, OUTPUTS = 200, 70
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def integers(low: int, high: int, *shape: int, dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    drawn = torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(dtype).to(device())


def scales(*shape: int, of: float, seed: int = 2) -> torch.Tensor:
    """About 1 / of, so that outputs are of the order of 1."""
    return (random(*shape, dtype=torch.float32, seed=seed).abs() + 0.5) / (of * INPUTS**0.5)


def e4m3(*shape: int, seed: int = 1) -> torch.Tensor:
    return random(*shape, dtype=torch.float32, seed=seed).to(torch.float8_e4m3fn)


@BOTH
def test_rows_become_the_codes_of_plain_torch(dtype: torch.dtype) -> None:
    x = random(5, INPUTS, dtype=dtype)
    x[2] = 0
    codes, row_scales = fused.quantize_rows(x)
    expected = reference.quantize_rows(x)
    assert codes.tolist() == expected[0].tolist()
    assert_same_bits(row_scales, expected[1])


def test_a_code_between_two_goes_to_the_even_one() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, -2.5, 126.5]], device=device())
    assert fused.quantize_rows(x)[0].tolist() == [[127, 0, 2, -2, 126]]


@pytest.mark.parametrize("group", [64, 128, INPUTS])
def test_rows_become_e4m3_in_groups(group: int) -> None:
    x = random(4, INPUTS, dtype=torch.bfloat16) * 3
    codes, row_scales = fused.quantize_rows_fp8(x, group)
    expected = reference.quantize_rows_fp8(x, group)
    assert_same_bits(codes, expected[0])
    assert_same_bits(row_scales, expected[1])


def test_every_number_becomes_the_nearest_e4m3() -> None:
    """All that e4m3 can say, the middles between (to the even one), and what lies just beside them."""
    every = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (every[1:] + every[:-1]) / 2
    near = torch.cat([torch.nextafter(middles, torch.tensor(0.0)), torch.nextafter(middles, torch.tensor(1e3))])
    values = torch.cat([every, middles, near])
    # 448 among them makes the scale 1.
    row = torch.cat([values, -values])[None].to(device())
    codes, row_scales = fused.quantize_rows_fp8(row, row.shape[1])
    assert row_scales.tolist() == [[1.0]]
    assert_same_bits(codes[0].cpu(), torch.cat([values, -values]).to(torch.float8_e4m3fn))


@pytest.mark.parametrize("rows", [1, 20, 300])
def test_int8_times_int8_is_that_of_plain_torch(rows: int) -> None:
    codes, row_scales = reference.quantize_rows(random(rows, INPUTS, dtype=torch.float32))
    weight, of_columns = integers(-127, 128, OUTPUTS, INPUTS, dtype=torch.int8), scales(OUTPUTS, of=73)
    bias = random(OUTPUTS, dtype=torch.float32, seed=3)
    out = fused.linear_int8(codes, row_scales, weight, of_columns, bias)
    assert_close(out, reference.linear_int8(codes, row_scales, weight, of_columns, bias))
    alone = fused.linear_int8(codes[-1:], row_scales[-1:].clone(), weight, of_columns, bias)
    assert_same_bits(alone, out[-1:])


@pytest.mark.parametrize(("group", "block_rows"), [(128, 40), (INPUTS, OUTPUTS), (INPUTS, 1)])
def test_e4m3_times_e4m3_is_that_of_plain_torch(group: int, block_rows: int) -> None:
    codes, row_scales = reference.quantize_rows_fp8(random(5, INPUTS, dtype=torch.float32), group)
    weight, shape = e4m3(OUTPUTS, INPUTS), (-(-OUTPUTS // block_rows), -(-INPUTS // group))
    of_columns, bias = scales(*shape, of=1), random(OUTPUTS, dtype=torch.float32, seed=3)
    arguments = weight, of_columns, block_rows, group, bias
    out = whole(fused.linear_fp8(codes, row_scales, *arguments))
    expected = reference.linear_fp8(codes, row_scales, *arguments)
    if architecture(out.device) != 90:
        assert_close(out, expected)
    else:
        off = (out.double() - expected.double()).abs().cpu()
        there = [each.cpu() for each in (codes, row_scales, weight, of_columns)]
        assert bool((off <= allowed_on_sm_90(*there, block_rows, group)).all())


def allowed_on_sm_90(
    codes: torch.Tensor, row_scales: torch.Tensor, weight: torch.Tensor, of_columns: torch.Tensor, block_rows: int,
    group: int,
) -> torch.Tensor:  # fmt: skip
    """By output, how far off sums in 14 bits may be, at worst.

    An instruction of sm_90 adds 32 products of e4m3 to its sum: all 33 are cut to 14 bits below the largest of them, so
    each may lose 2^-13 of that. The sum begins anew with each step of K, whose result is added in float32."""
    a, b, step = codes.double(), weight.double(), fused.fp8_tile_of(INPUTS, group)["BLOCK_K"]
    allowed = torch.full((len(a), len(b)), 1e-5, dtype=torch.float64)
    for start in range(0, INPUTS, step):
        end, place = min(start + step, INPUTS), start // group
        columns = of_columns[:, place].double().repeat_interleave(block_rows)[: len(b)]
        by, added = row_scales[:, place].double()[:, None] * columns[None, :], torch.zeros_like(allowed)
        for k in range(start, end, 32):
            products = a[:, None, k : min(k + 32, end)] * b[None, :, k : min(k + 32, end)]
            allowed += 33 * 2.0**-13 * torch.maximum(added.abs(), products.abs().amax(-1)) * by
            added += products.sum(-1)
    return allowed


CODED = [
    ("int8", 0, 1, False, False),
    ("int8", 40, 1, True, False),
    ("fp8", 128, 40, False, False),
    ("fp8", 0, OUTPUTS, False, False),
    ("int4", 0, 1, False, False),
    ("int4", 64, 1, True, False),
    ("int4", 40, 1, True, False),
    ("int4", 50, 1, True, True),
]


def test_int8_takes_the_widest_tile_that_makes_enough_programs_by_powers_of_two_of_rows() -> None:
    sizes = {(rows, columns): (tile["BLOCK_M"], tile["BLOCK_N"]) for rows in (1, 16, 64, 200, 256, 2048)
             for columns in (576, 4096, 28672) for tile in [fused.int8_tile_of(rows, columns)]}  # fmt: skip
    assert sizes == {
        (1, 576): (16, 32), (1, 4096): (16, 32), (1, 28672): (16, 64),
        (16, 576): (16, 32), (16, 4096): (16, 32), (16, 28672): (16, 64),
        (64, 576): (64, 32), (64, 4096): (64, 32), (64, 28672): (64, 128),
        (200, 576): (64, 32), (200, 4096): (64, 128), (200, 28672): (64, 128),
        (256, 576): (64, 32), (256, 4096): (64, 128), (256, 28672): (64, 128),
        (2048, 576): (128, 64), (2048, 4096): (128, 128), (2048, 28672): (128, 128),
    }  # fmt: skip
    for columns in (576, 4096, 6144):
        assert all(
            fused.int8_tile_of(rows, columns) == fused.int8_tile_of(power_of_two(rows), columns)
            for rows in range(1, 2049)
        )


@pytest.mark.parametrize(("inputs", "group"), [(300, 300), (1, 1), (33, 32), (256, 0)])
def test_two_codes_of_a_byte_go_half_a_step_apart(inputs: int, group: int) -> None:
    codes = integers(0, 16, 3, inputs + inputs % 2, dtype=torch.uint8)
    step = fused.coded_tile_of(inputs, group, torch.bfloat16)["BLOCK_K"]
    apart = fused.halves_apart(codes[:, ::2] | codes[:, 1::2] << 4, inputs, group, torch.bfloat16)
    for k in range(inputs):
        at, within = divmod(k, step)
        byte = apart[:, at * step // 2 + within % (step // 2)]
        assert torch.equal(byte >> 4 if within >= step // 2 else byte & 15, codes[:, k])


@BOTH
@pytest.mark.parametrize(("kind", "group", "block_rows", "has_zeros", "any_order"), CODED)
def test_coded_weights_give_what_dense_ones_give(
    dtype: torch.dtype, kind: str, group: int, block_rows: int, has_zeros: bool, any_order: bool
) -> None:
    x, codes, of_columns, facts = coded_example(3, INPUTS, dtype, kind, group, block_rows, has_zeros, any_order)
    out = multiplied(x, codes, of_columns, **facts)
    assert_close(out, reference.linear_coded(x, codes, of_columns, **facts), dtype)


def multiplied(x: torch.Tensor, codes: torch.Tensor, of_columns: torch.Tensor, **facts) -> torch.Tensor:
    """`linear_coded` of codes as they are stored."""
    group = 0 if "groups" in facts else facts["group_size"] or x.shape[1]
    codes = fused.halves_apart(codes, x.shape[1], group, x.dtype)
    return whole(fused.linear_coded(x, codes, of_columns, **facts))


def coded_example(rows, inputs, dtype, kind, group, block_rows, has_zeros, any_order):
    x, groups = random(rows, inputs, dtype=dtype), -(-inputs // (group or inputs))
    codes = {
        "int8": lambda: integers(-127, 128, OUTPUTS, inputs, dtype=torch.int8),
        "fp8": lambda: e4m3(OUTPUTS, inputs),
        "int4": lambda: integers(0, 256, OUTPUTS, (inputs + 1) // 2, dtype=torch.uint8),
    }[kind]()
    of_columns = scales(-(-OUTPUTS // block_rows), groups, of={"int8": 73, "fp8": 1, "int4": 6}[kind])
    facts = {"group_size": group, "block_rows": block_rows, "bias": random(OUTPUTS, dtype=dtype, seed=3)}
    if has_zeros:
        facts["zeros"] = integers(0, 16, OUTPUTS, groups, dtype=torch.int16, seed=4)
    if any_order:
        facts["groups"] = integers(0, groups, inputs, dtype=torch.int32, seed=5)
    return x, codes, of_columns, facts


def test_an_odd_number_of_inputs_leaves_half_a_byte_unread() -> None:
    x, codes, of_columns, facts = coded_example(2, 33, torch.float32, "int4", 0, 1, False, False)
    codes[:, -1] |= 0xF0
    expected = reference.linear_coded(x, codes, of_columns, **facts)
    assert_close(multiplied(x, codes, of_columns, **facts), expected)


def test_e4m3_that_is_no_number_shows() -> None:
    x, codes, of_columns, facts = coded_example(2, 40, torch.float32, "fp8", 0, OUTPUTS, False, False)
    codes.view(torch.uint8)[5, 3] = 0x7F
    out = multiplied(x, codes, of_columns, **facts)
    assert out.isnan().any(dim=0).nonzero().flatten().tolist() == [5]


@pytest.mark.parametrize("kind", ["int8", "fp8", "int4"])
def test_a_row_has_the_same_bits_alone_and_among_many(kind: str) -> None:
    rows = BLOCK_M + 3
    x, codes, of_columns, facts = coded_example(rows, 1200, torch.bfloat16, kind, 240, 1, kind == "int4", False)
    many = multiplied(x, codes, of_columns, **facts)
    assert_same_bits(multiplied(x[7:8], codes, of_columns, **facts), many[7:8])
    if kind == "fp8":
        row_codes, row_scales = reference.quantize_rows_fp8(x, 240)
        arguments = codes, of_columns, 1, 240, facts["bias"]
        with pytest.raises(AssertionError, match="groups of 240"):
            fused.linear_fp8(row_codes, row_scales, *arguments)


def test_a_row_of_e4m3_has_the_same_bits_alone_and_among_many() -> None:
    rows, inputs, group = BLOCK_M + 3, 1200, 128
    codes, row_scales = reference.quantize_rows_fp8(random(rows, inputs, dtype=torch.float32), group)
    arguments = e4m3(OUTPUTS, inputs), scales(1, 10, of=1), OUTPUTS, group
    many = whole(fused.linear_fp8(codes, row_scales, *arguments))
    assert_same_bits(whole(fused.linear_fp8(codes[7:8], row_scales[7:8], *arguments)), many[7:8])
