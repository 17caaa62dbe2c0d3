"""Routing and experts in Triton against plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.gemm.ending import whole
from kernels.gemm.ranges import Ranges
from kernels.moe import fused, reference
from kernels.moe.coded import CodedExperts
from kernels.quant.fused import halves_apart
from kernels.testing import assert_close, assert_same_bits, device, random
from tests.kernels.moe.facts import PLAIN

USUAL = PLAIN | {"top_k": 3, "normalize": True}
DEEPSEEK = {"scoring": "sigmoid", "groups": 4, "top_groups": 2, "epsilon": 1e-20, "scale": 2.5}
ERNIE = {"epsilon": 1e-3, "normalize_floor": True}
EXPERTS, HIDDEN, WIDE = 12, 48, 40


@pytest.mark.parametrize(
    "facts", [{}, {"normalize": False}, DEEPSEEK, DEEPSEEK | {"group_by_best": True}, ERNIE], ids=str
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_rows_go_where_plain_torch_sends_them(facts: dict[str, Any], has_bias: bool) -> None:
    # Few distinct values, so that there are ties.
    logits = random(9, EXPERTS, dtype=torch.float32).round(decimals=0)
    bias = random(EXPERTS, dtype=torch.float32, seed=1).round(decimals=1) if has_bias else None
    ids, weights = fused.route(logits, bias, **(USUAL | facts))
    expected_ids, expected_weights = reference.route(logits, bias, **(USUAL | facts))
    assert ids.tolist() == expected_ids.tolist()
    assert_close(weights, expected_weights)


def test_scores_that_are_no_numbers_choose_nobody_and_show() -> None:
    logits = random(3, EXPERTS, dtype=torch.float32)
    logits[1] = float("nan")
    ids, weights = fused.route(logits, None, **USUAL)
    assert weights.isnan().any(dim=1).tolist() == [False, True, False]
    gate_up, down = weights_of_experts(torch.float32)
    out = fused.experts(random(3, HIDDEN, dtype=torch.float32), gate_up, down, ids, weights)
    assert out.isnan().all(dim=1).tolist() == [False, True, False]
    assert not bool(out[[0, 2]].isnan().any())


def weights_of_experts(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Gates and ups by turns; what they give."""
    gate_up = random(EXPERTS, 2 * WIDE, HIDDEN, dtype=dtype, seed=3) / HIDDEN**0.5
    return gate_up, random(EXPERTS, HIDDEN, WIDE, dtype=dtype, seed=4) / WIDE**0.5


def apart(by_turns: torch.Tensor) -> torch.Tensor:
    """Of each expert gates, then ups."""
    return torch.cat([by_turns[:, ::2], by_turns[:, 1::2]], dim=1)


def routed(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return reference.route(random(rows, EXPERTS, dtype=torch.float32, seed=5), None, **USUAL)


def test_each_pair_stands_once_in_a_tile_of_its_expert() -> None:
    ids = torch.tensor([[0, 1, 5], [1, 2, 5], [1, 5, 11]] * 7, dtype=torch.int32)  # 21 rows: expert 1 needs two tiles
    places, tile_experts = fused.sort_by_expert(ids.to(device()), EXPERTS)
    tiles = places.view(-1, fused.BLOCK_M).tolist()
    seen: list[int] = []
    for tile, expert in zip(tiles, tile_experts.tolist(), strict=True):
        if expert >= 0:
            pairs = [pair for pair in tile if pair >= 0]
            assert pairs and all(ids.flatten()[pair] == expert for pair in pairs)
            seen += pairs
    assert sorted(seen) == list(range(ids.numel()))
    assert [expert for expert in tile_experts.tolist() if expert >= 0] == [0, 1, 1, 2, 5, 5, 11]


@pytest.mark.parametrize(("rows", "dtype"), [(21, torch.float32), (1, torch.bfloat16), (21, torch.bfloat16)])
def test_experts_are_those_of_plain_torch(rows: int, dtype: torch.dtype) -> None:
    x, (gate_up, down), (ids, weights) = random(rows, HIDDEN, dtype=dtype), weights_of_experts(dtype), routed(rows)
    shared = random(rows, HIDDEN, dtype=dtype, seed=6)
    expected = reference.experts(x, apart(gate_up), down, ids, weights)
    assert_close(fused.experts(x, gate_up, down, ids, weights), expected, dtype)
    assert_close(fused.experts(x, gate_up, down, ids, weights, shared), expected + shared.float(), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_may_have_biases(dtype: torch.dtype) -> None:
    x, (gate_up, down), (ids, weights) = random(9, HIDDEN, dtype=dtype), weights_of_experts(dtype), routed(9)
    biases = random(EXPERTS, 2 * WIDE, dtype=torch.float32, seed=7), random(EXPERTS, HIDDEN, dtype=torch.float32)
    meant = apart(biases[0]), biases[1]
    expected = reference.experts(x, apart(gate_up), down, ids, weights, "clamped_swiglu", 0.7, meant)
    found = fused.experts(x, gate_up, down, ids, weights, None, "clamped_swiglu", 0.7, biases)
    assert_close(found, expected, dtype)


@pytest.mark.parametrize("biased", [False, True])
def test_scores_may_be_in_ranges(biased: bool) -> None:
    bias = random(EXPERTS, dtype=torch.float32, seed=1) if biased else None
    logits = Ranges(random(3, 9, EXPERTS, dtype=torch.float32), bias, torch.float32)
    for ours, theirs in zip(*(fused.route(each, None, **USUAL) for each in (logits, whole(logits))), strict=True):
        assert_same_bits(ours, theirs)


def test_what_goes_to_no_expert_here_stands_in_no_tile() -> None:
    ids = torch.tensor([[-1, 1, 16], [1, -1, 2]], dtype=torch.int32, device=device())
    places, tile_experts = fused.sort_by_expert(ids, EXPERTS)
    assert sorted(pair for pair, tile in enumerate(tile_experts.tolist()) if tile >= 0) == [0, 1]
    assert [each for each in places.tolist()[: 2 * fused.BLOCK_M] if each >= 0] == [1, 3, 5]


def coded(
    kind: str, outputs: int, inputs: int, seed: int, dtype: torch.dtype = torch.float32
) -> tuple[CodedExperts, torch.Tensor]:
    """Random codes in every form, for rows of this dtype, and the weights [E, N, K] they stand for."""
    dice = torch.Generator().manual_seed(seed)
    group, block_rows = {"int4": (16, 1), "int4 sorted": (16, 1), "int8": (inputs, 1), "fp8": (32, 24)}[kind]
    groups = -(-inputs // group)
    scales = torch.rand(EXPERTS, -(-outputs // block_rows), groups, generator=dice) / inputs**0.5
    over = torch.arange(outputs) // block_rows
    of = torch.arange(inputs) // group
    zeros = sorting = None
    if kind == "int8":
        codes = torch.randint(-127, 128, (EXPERTS, outputs, inputs), generator=dice, dtype=torch.int8)
        plain, scales = codes.float(), scales / 64
    elif kind == "fp8":
        codes = torch.randn(EXPERTS, outputs, inputs, generator=dice).to(torch.float8_e4m3fn)
        plain = codes.float()
    else:
        plain = torch.randint(0, 16, (EXPERTS, outputs, inputs), generator=dice)
        stored = (plain[..., 0::2] | plain[..., 1::2] << 4).to(torch.uint8)
        codes = halves_apart(stored, inputs, 0 if kind == "int4 sorted" else group, dtype)
        zeros = torch.randint(5, 11, (EXPERTS, outputs, groups), generator=dice).to(torch.int16)
        if kind == "int4 sorted":
            sorting = torch.stack([of[torch.randperm(inputs, generator=dice)] for _ in range(EXPERTS)]).int()
    by = of.expand(EXPERTS, -1) if sorting is None else sorting.long()
    spread = by[:, None].expand(-1, outputs, -1)
    meant = plain.float() - (zeros.float().gather(2, spread) if zeros is not None else 0)
    meant = meant * scales[:, over].gather(2, spread)
    there = [None if each is None else each.to(device()) for each in (zeros, sorting)]
    return CodedExperts(codes.to(device()), scales.to(device()), *there, inputs, group, block_rows), meant


# How rows are laid out in tiles is the same for all kinds.
@pytest.mark.parametrize(("kind", "rows"), [("int4", 1), ("int4", 21), ("int4 sorted", 21), ("int8", 21), ("fp8", 21)])
def test_coded_experts_are_those_of_the_weights_they_stand_for(kind: str, rows: int) -> None:
    x, (ids, weights) = random(rows, HIDDEN, dtype=torch.float32), routed(rows)
    gate_up, wide = coded(kind, 2 * WIDE, HIDDEN, 1)
    down, narrow = coded(kind, HIDDEN, WIDE, 2)
    expected = reference.experts(x.cpu(), apart(wide), narrow, ids.cpu(), weights.cpu()).to(x.device)
    size = expected.abs().max()
    assert_close(fused.experts(x, gate_up, down, ids, weights) / size, expected / size)


def test_a_row_has_the_same_bits_with_coded_experts_whichever_rows_share_them() -> None:
    x, (ids, weights) = random(21, HIDDEN, dtype=torch.bfloat16), routed(21)
    gate_up, down = (coded("int4", *shape, 1, x.dtype)[0] for shape in ((2 * WIDE, HIDDEN), (HIDDEN, WIDE)))
    together = fused.experts(x, gate_up, down, ids, weights)
    for row in (0, 7, 20):
        alone = fused.experts(x[row : row + 1], gate_up, down, ids[row : row + 1], weights[row : row + 1])
        assert_same_bits(alone[0], together[row])


def test_a_row_has_the_same_bits_whichever_rows_share_its_experts() -> None:
    x, (gate_up, down) = random(21, HIDDEN, dtype=torch.bfloat16), weights_of_experts(torch.bfloat16)
    ids, weights = routed(21)
    together = fused.experts(x, gate_up, down, ids, weights)
    for row in (0, 20):
        one = slice(row, row + 1)
        alone = fused.experts(x[one], gate_up, down, ids[one].contiguous(), weights[one].contiguous())
        assert_same_bits(alone, together[one])
    crowd = [7] * 30 + [3]
    crowded = fused.experts(x[crowd], gate_up, down, ids[crowd], weights[crowd])
    assert_same_bits(crowded[-1], together[3])
