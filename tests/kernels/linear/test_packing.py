"""The order of packed weights, and their bytes: as plain torch puts and rounds them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernels.linear import packing
from kernels.linear.packing import PER_STEP, pack, quantize
from kernels.linear.tiles import BLOCK

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


@pytest.fixture(params=[1, 3], autouse=True)
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Weights as small as these are shared, too.
    monkeypatch.setattr(packing, "_A_THREAD", 64)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def in_order(rows: torch.Tensor, kind: str, gated: bool) -> torch.Tensor:
    """[blocks, steps, 32, p] of the rows, one number after the other."""
    per, width = PER_STEP[kind], BLOCK // 2 if gated else BLOCK
    halves = rows.chunk(2) if gated else (rows,)
    blocks, steps = -(-len(halves[0]) // width), -(-rows.shape[1] // per)
    made = torch.zeros(blocks, steps, BLOCK, per, dtype=rows.dtype)
    for place, half in enumerate(halves):
        for output, row in enumerate(half):
            whole = torch.nn.functional.pad(row, (0, steps * per - len(row))).view(steps, per)
            made[output // width, :, place * width + output % width] = whole
    return made


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("rows, inputs", [(2, 1), (64, 64), (70, 66), (98, 35), (2, 203)])
def test_words_stand_in_the_order_that_tiles_read(kind: str, gated: bool, rows: int, inputs: int) -> None:
    weight = torch.randn(rows, inputs).bfloat16()
    numbers = quantize(weight)[0] if kind == "int8" else weight.to(DTYPES[kind])
    packed = pack(weight, kind, gated=gated).weight
    assert torch.equal(packed, in_order(numbers, kind, gated))


def test_experts_and_rows_that_are_part_of_a_tensor_are_packed_like_others() -> None:
    whole = torch.randn(2, 40, 130).bfloat16()
    given = [each[:, 1:101] for each in whole]
    packed = pack(given, "bfloat16").weight
    assert torch.equal(packed, torch.cat([in_order(each, "bfloat16", False) for each in given]))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("sizes", [(64, 64), (50, 7, 33), (1, 95, 2)])
def test_parts_below_each_other_are_packed_as_one(kind: str, gated: bool, sizes: tuple[int, ...]) -> None:
    whole = torch.randn(sum(sizes), 70).bfloat16()
    found, expected = pack([whole.split(sizes)], kind, gated=gated), pack(whole, kind, gated=gated)
    assert torch.equal(found.weight, expected.weight) and torch.equal(found.starts, expected.starts)
    assert kind != "int8" or torch.equal(found.scales, expected.scales)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_bytes_are_rounded_to_even_by_the_largest_of_their_row(dtype: torch.dtype) -> None:
    weight = (torch.randn(37, 130) * torch.logspace(-3, 3, 37)[:, None]).to(dtype)
    weight[5] = 0
    # Ties: of a row whose scale is 1.
    weight[6] = 0
    weight[6, :4] = torch.tensor([127.0, 2.5, -3.5, 0.5], dtype=dtype)
    found, scales = quantize(weight)
    values = weight.float()
    expected = values.abs().amax(1) / 127
    inverse = torch.where(expected > 0, 1 / expected, torch.zeros(()))
    assert torch.equal(scales, expected)
    assert torch.equal(found, torch.round(values * inverse[:, None]).to(torch.int8))
    assert found[6, :4].tolist() == [127, 2, -4, 0] and found.abs().max() == 127


def test_a_row_that_is_not_finite_says_so_by_its_scale() -> None:
    weight = torch.ones(3, 40)
    weight[0, 39], weight[2, 3] = float("nan"), float("inf")
    scales = quantize(weight)[1]
    assert scales.isnan().tolist() == [True, False, True]
