"""Linears on the device itself: kernels that start before the one in front of them has ended."""

from __future__ import annotations

import pytest
import torch

from kernels import interpreter
from kernels.device import device_of
from kernels.gemm.fused import BLOCK_M, linear, tile_of
from kernels.testing import assert_same_bits, device, random

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(interpreter.in_use() or not torch.cuda.is_available(), reason="no GPU here"),
]
TURNS = 100


@pytest.mark.parametrize("rows", [1, 16, BLOCK_M])
def test_ranges_of_linears_that_follow_each_other_always_add_up_to_the_same_bits(rows: int) -> None:
    """From a graph, too, and beside another stream."""
    weights = [random(columns, 4096, dtype=torch.bfloat16, seed=columns) / 64 for columns in (4096, 6144)]
    assert all(tile_of(*weight.shape, torch.bfloat16)[1] > 1 for weight in weights)
    x = random(BLOCK_M + 1, 4096, dtype=torch.bfloat16)
    expected = [linear(x, weight)[:rows] for weight in weights]
    outs = [[torch.empty_like(each) for each in expected] for _ in range(TURNS)]

    def run() -> None:
        for turn in outs:
            for weight, out in zip(weights, turn, strict=True):
                linear(x[:rows], weight, out=out)

    def check() -> None:
        torch.cuda.synchronize()
        for turn in outs:
            for out, wanted in zip(turn, expected, strict=True):
                assert_same_bits(out, wanted)
                out.fill_(float("nan"))

    run()
    check()
    replay, aside = device_of(device()).capture(run), torch.cuda.Stream()
    check()
    aside.wait_stream(torch.cuda.current_stream())
    replay()
    with torch.cuda.stream(aside):
        beside = [linear(x[:rows], weights[0]) for _ in range(TURNS)]
    check()
    for out in beside:
        assert_same_bits(out, expected[0])
