"""PackedLinear: the right numbers, and row counts in its range that agree to the bit."""

from __future__ import annotations

import pytest
import torch

from models.layers.packed_linear import PackedLinear, RowRange, _run_around_common, common_range

# SmolLM2's shapes, and odd ones.
SHAPES = [(576, 960), (576, 576), (576, 3072), (1536, 576), (96, 33), (40, 8)]
DTYPES = [torch.bfloat16, torch.float32]


def linear_of(inputs: int, outputs: int, dtype: torch.dtype) -> tuple[PackedLinear, torch.Tensor]:
    generator = torch.Generator().manual_seed(inputs * outputs)
    weight = (torch.randn(outputs, inputs, generator=generator) / inputs**0.5).to(dtype)
    return PackedLinear(weight, None), weight


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_it_computes_what_a_linear_computes(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    weight = (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)
    bias = torch.randn(outputs).to(dtype)
    x = torch.randn(5, inputs).to(dtype)
    expected = x.double() @ weight.double().T + bias.double()
    tolerance = 0.03 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(PackedLinear(weight, bias)(x).double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_every_row_count_in_its_range_gives_a_row_the_same_bits(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    linear, _ = linear_of(inputs, outputs, dtype)
    found = linear.find_range()
    assert found.low <= 16 <= found.high
    probe, x = linear._probe(found.high)
    expected = probe(x)
    for rows in range(found.low, found.high + 1):
        # At the front and at the back: a tail has kernels of its own.
        assert torch.equal(probe(x[:rows]), expected[:rows]), rows
        assert torch.equal(probe(x[found.high - rows :]), expected[found.high - rows :]), rows


def test_a_probe_shows_another_order_of_summation() -> None:
    linear, _ = linear_of(1536, 576, torch.bfloat16)
    probe, x = linear._probe(16)
    assert 0 < probe(x).abs().max() < 1e-2
    # The same products in another order are another result, although bfloat16 keeps 8 bits.
    order = torch.randperm(1536, generator=torch.Generator().manual_seed(3))
    dense = probe(torch.eye(1536, dtype=torch.bfloat16)).T.contiguous()
    shuffled = PackedLinear(dense[:, order].contiguous(), None)
    assert not torch.equal(shuffled(x[:, order].contiguous()), probe(x))


def test_the_range_is_the_run_of_agreeing_counts_around_sixteen() -> None:
    counts = (1, 2, 4, 8, 16, 32, 64)
    assert _run_around_common(counts, set(counts)) == RowRange(1, 64)
    assert _run_around_common(counts, {2, 4, 8, 16, 32}) == RowRange(2, 32)
    assert _run_around_common(counts, {1, 4, 8, 16, 64}) == RowRange(4, 16)
    assert _run_around_common(counts, {16}) == RowRange(16, 16)


def test_the_common_range_suits_every_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    linears = [linear_of(64, n, torch.float32)[0] for n in (8, 16, 8)]
    tried: list[int] = []

    def find(linear: PackedLinear) -> RowRange:
        tried.append(linear.outputs)
        return RowRange(2, 128) if linear.outputs == 8 else RowRange(1, 64)

    monkeypatch.setattr(PackedLinear, "find_range", find)
    assert common_range(linears) == RowRange(2, 64)
    assert sorted(tried) == [8, 16]
