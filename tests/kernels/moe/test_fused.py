"""Routing and experts in Triton against plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.moe import fused, reference
from kernels.testing import assert_close, assert_same_bits, random
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
    gate_up = random(EXPERTS, 2 * WIDE, HIDDEN, dtype=dtype, seed=3) / HIDDEN**0.5
    return gate_up, random(EXPERTS, HIDDEN, WIDE, dtype=dtype, seed=4) / WIDE**0.5


def routed(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return reference.route(random(rows, EXPERTS, dtype=torch.float32, seed=5), None, **USUAL)


def test_each_pair_stands_once_in_a_tile_of_its_expert() -> None:
    ids = torch.tensor([[0, 1, 5], [1, 2, 5], [1, 5, 11]] * 7, dtype=torch.int32)  # 21 rows: expert 1 needs two tiles
    places, tile_experts = fused.sort_by_expert(ids, EXPERTS)
    tiles = places.view(-1, fused.BLOCK_M).tolist()
    seen: list[int] = []
    for tile, expert in zip(tiles, tile_experts.tolist(), strict=True):
        if expert >= 0:
            pairs = [pair for pair in tile if pair >= 0]
            assert pairs and all(ids.flatten()[pair] == expert for pair in pairs)
            seen += pairs
    assert sorted(seen) == list(range(ids.numel()))
    assert [expert for expert in tile_experts.tolist() if expert >= 0] == [0, 1, 1, 2, 5, 5, 11]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 21])
def test_experts_are_those_of_plain_torch(dtype: torch.dtype, rows: int) -> None:
    x, (gate_up, down), (ids, weights) = random(rows, HIDDEN, dtype=dtype), weights_of_experts(dtype), routed(rows)
    shared = random(rows, HIDDEN, dtype=dtype, seed=6)
    expected = reference.experts(x, gate_up, down, ids, weights)
    assert_close(fused.experts(x, gate_up, down, ids, weights), expected, dtype)
    assert_close(fused.experts(x, gate_up, down, ids, weights, shared), expected + shared.float(), dtype)


def test_a_row_has_the_same_bits_whoever_shares_its_experts() -> None:
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
