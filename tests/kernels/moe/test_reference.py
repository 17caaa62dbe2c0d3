"""Routing and experts as formulas say them, row by row in plain Python."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kernels.moe.reference import experts, route
from tests.kernels.moe.facts import PLAIN


def routed(logits: list[float], bias: list[float] | None = None, **facts: Any) -> tuple[list[int], list[float]]:
    ids, weights = route(torch.tensor([logits]), None if bias is None else torch.tensor(bias), **(PLAIN | facts))
    return ids[0].tolist(), weights[0].tolist()


def logit(score: float) -> float:
    """What sigmoid turns into `score`."""
    return math.log(score / (1 - score))


def test_the_best_experts_are_chosen_and_come_in_ascending_order() -> None:
    ids, weights = routed([math.log(p) for p in (0.1, 0.4, 0.2, 0.3)])
    assert ids == [1, 3]
    assert weights == pytest.approx([0.4, 0.3])


def test_equal_scores_go_to_the_lower_id() -> None:
    assert routed([1.0, 2.0, 2.0, 2.0, 1.0])[0] == [1, 2]
    assert routed([0.0] * 6, top_k=3)[0] == [0, 1, 2]


def test_normalized_weights_sum_to_the_scale() -> None:
    _, weights = routed([math.log(p) for p in (0.1, 0.4, 0.2, 0.3)], normalize=True, scale=2.5)
    assert weights == pytest.approx([2.5 * 4 / 7, 2.5 * 3 / 7])


def test_epsilon_stands_below_the_line_or_is_its_floor() -> None:
    logits = [logit(0.1), logit(0.3), logit(0.2)]
    assert routed(logits, scoring="sigmoid", normalize=True, epsilon=0.5)[1] == pytest.approx([0.3, 0.2])
    floored = {"scoring": "sigmoid", "normalize": True, "normalize_floor": True}
    assert routed(logits, epsilon=1.0, **floored)[1] == pytest.approx([0.3, 0.2])
    assert routed(logits, epsilon=0.1, **floored)[1] == pytest.approx([0.6, 0.4])


def test_the_correction_bias_changes_who_is_chosen_and_no_weight() -> None:
    ids, weights = routed([logit(s) for s in (0.9, 0.5, 0.4, 0.1)], [-1.0, 0.0, 0.0, 0.45], scoring="sigmoid")
    assert ids == [1, 3]
    assert weights == pytest.approx([0.5, 0.1])


SIX = [logit(s) for s in (0.9, 0.1, 0.6, 0.5, 0.2, 0.7)]  # groups of two: sums 1.0, 1.1, 0.9; bests 0.9, 0.6, 0.7


def test_only_experts_of_the_best_groups_are_chosen() -> None:
    in_groups = {"scoring": "sigmoid", "groups": 3, "top_groups": 1}
    assert routed(SIX, **in_groups)[0] == [2, 3]
    assert routed(SIX, **in_groups, group_by_best=True)[0] == [0, 1]
    assert routed(SIX, **(in_groups | {"top_groups": 2}))[0] == [0, 2]


def test_groups_hold_under_a_bias_that_makes_all_scores_negative() -> None:
    ids, _ = routed(SIX, [-5.0] * 6, scoring="sigmoid", groups=3, top_groups=1)
    assert ids == [2, 3]


def test_equal_groups_go_to_the_lower_one() -> None:
    assert routed([0.0] * 8, groups=4, top_groups=2, top_k=3)[0] == [0, 1, 2]


def test_a_row_of_nan_still_names_experts_that_exist() -> None:
    ids, _ = routed([math.nan] * 6, groups=3, top_groups=2)
    assert len(set(ids)) == 2 and all(0 <= i < 6 for i in ids)


def test_a_rows_output_is_the_weighted_sum_over_its_experts() -> None:
    noise = torch.Generator().manual_seed(0)
    rows, count, hidden, wide = 7, 5, 12, 9
    x, gate_up, down = (
        torch.randn(*shape, generator=noise)
        for shape in ((rows, hidden), (count, 2 * wide, hidden), (count, hidden, wide))
    )
    ids, weights = route(torch.randn(rows, count, generator=noise), None, **PLAIN)
    out = experts(x, gate_up, down, ids, weights)
    for row in range(rows):
        expected = torch.zeros(hidden)
        for expert, weight in zip(ids[row].tolist(), weights[row], strict=True):
            gate, up = gate_up[expert, :wide] @ x[row], gate_up[expert, wide:] @ x[row]
            expected += weight * (down[expert] @ (gate / (1 + (-gate).exp()) * up))
        assert (out[row] - expected).abs().max() <= 1e-5 * expected.abs().max()
