"""Routing as compiled ops against plain torch; a row goes where it would go alone, with the same bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from kernels.cpu_program import ROWS, Program
from kernels.moe import reference
from kernels.moe.cpu import Routed, combine_op, gather_op, route_ops

PLAIN: dict[str, Any] = {
    "top_k": 2,
    "scoring": "softmax",
    "normalize": False,
    "epsilon": 0.0,
    "normalize_floor": False,
    "scale": 1.0,
    "groups": 1,
    "top_groups": 1,
    "group_by_best": False,
}
FACTS: dict[str, dict[str, Any]] = {
    "softmax": {"top_k": 3},
    "softmax, normalized": {"top_k": 3, "normalize": True},
    "softmax, a floor": {"top_k": 2, "normalize": True, "normalize_floor": True, "epsilon": 0.4},
    "sigmoid": {"top_k": 3, "scoring": "sigmoid", "normalize": True, "epsilon": 1e-20, "scale": 2.5},
    "groups": {"top_k": 3, "scoring": "sigmoid", "groups": 4, "top_groups": 2},
    "groups by their best": {"top_k": 3, "scoring": "sigmoid", "groups": 4, "top_groups": 2, "group_by_best": True},
    "groups of one": {"top_k": 2, "scoring": "sigmoid", "groups": 12, "top_groups": 5},
    "one expert": {"top_k": 1},
    "all experts": {"top_k": 12, "normalize": True},
}
EXPERTS, MAX_ROWS = 12, 70


class Routing:
    """choose and sort over logits in the buffer."""

    def __init__(self, bias: list[float] | None = None, threads: int = 1, experts: int = EXPERTS, **facts: Any) -> None:
        self.facts = PLAIN | facts
        self.logits = np.full((MAX_ROWS, experts), np.nan, np.float32)
        self.bias = None if bias is None else np.array(bias, np.float32)
        self.routed = Routed.empty(MAX_ROWS, experts, self.facts["top_k"])
        others = {name: value for name, value in self.facts.items() if name != "top_k"}
        self.program = Program(route_ops(self.logits, self.bias, self.routed, **others), threads)

    def run(self, logits: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """ids and weights, [R, top_k]."""
        rows, shape = len(logits), (-1, self.facts["top_k"])
        self.logits[:rows], self.logits[rows:] = logits.numpy(), np.nan
        for array in (self.routed.ids, self.routed.starts, self.routed.rows, self.routed.places):
            array[:] = -99
        self.program.step[ROWS] = rows
        self.program.run()
        count = rows * self.facts["top_k"]
        ids, weights = self.routed.ids[:count].reshape(shape), self.routed.weights[:count].reshape(shape)
        return ids.copy(), weights.copy()

    def expected(self, logits: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        bias = None if self.bias is None else torch.from_numpy(self.bias)
        ids, weights = reference.route(logits, bias, **self.facts)
        return ids.numpy(), weights.numpy()


def random_logits(rows: int, seed: int, experts: int = EXPERTS) -> torch.Tensor:
    return torch.randn(rows, experts, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("facts", FACTS)
def test_experts_and_weights_are_the_references(facts: str, biased: bool) -> None:
    bias = np.linspace(-0.5, 0.3, EXPERTS).tolist() if biased else None
    routing, logits = Routing(bias, **FACTS[facts]), random_logits(MAX_ROWS, 1)
    ids, weights = routing.run(logits)
    expected_ids, expected = routing.expected(logits)
    assert (ids == expected_ids).all()
    assert np.abs(weights - expected).max() <= 2e-6 * np.abs(expected).max()


@pytest.mark.parametrize("facts", FACTS)
def test_ties_go_to_the_lower_id(facts: str) -> None:
    """Small whole numbers: every row has ties, most of them where the choice ends."""
    routing = Routing(**FACTS[facts])
    logits = torch.randint(0, 3, (MAX_ROWS, EXPERTS), generator=torch.Generator().manual_seed(2)).float()
    assert (routing.run(logits)[0] == routing.expected(logits)[0]).all()


@pytest.mark.parametrize("facts", FACTS)
def test_a_row_has_the_same_bits_alone_and_among_others(facts: str) -> None:
    routing, logits = Routing(**FACTS[facts], threads=3), random_logits(MAX_ROWS, 3)
    ids, weights = routing.run(logits)
    for first, rows in ((0, 1), (17, 1), (69, 1), (5, 8), (60, 10), (1, 33)):
        some_ids, some_weights = routing.run(logits[first : first + rows])
        assert (some_ids == ids[first : first + rows]).all()
        assert some_weights.tobytes() == weights[first : first + rows].tobytes()


def test_many_experts_are_told_apart() -> None:
    routing = Routing(experts=256, top_k=8, scoring="sigmoid", groups=8, top_groups=4, normalize=True, epsilon=1e-20)
    logits = random_logits(MAX_ROWS, 4, 256)
    ids, weights = routing.run(logits)
    expected_ids, expected = routing.expected(logits)
    assert (ids == expected_ids).all() and np.abs(weights - expected).max() <= 1e-6


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("facts", FACTS)
def test_logits_that_are_no_numbers_still_name_experts_that_exist(facts: str, value: float) -> None:
    ids, _ = Routing(**FACTS[facts]).run(torch.full((3, EXPERTS), value))
    assert ((ids >= 0) & (ids < EXPERTS)).all()
    assert (np.diff(ids, axis=1) > 0).all()


@pytest.mark.parametrize("rows", [1, 2, 70])
def test_every_expert_finds_its_rows_in_ascending_order(rows: int) -> None:
    routing = Routing(top_k=3)
    ids, _ = routing.run(random_logits(rows, 5))
    routed = routing.routed
    assert routed.starts[0] == 0 and routed.starts[EXPERTS] == rows * 3
    for expert in range(EXPERTS):
        own = routed.rows[routed.starts[expert] : routed.starts[expert + 1]].tolist()
        assert own == [row for row in range(rows) if expert in ids[row]]
    for i, place in enumerate(routed.places[: rows * 3]):
        assert routed.rows[place] == i // 3
        assert routed.starts[ids.flat[i]] <= place < routed.starts[ids.flat[i] + 1]


@pytest.mark.parametrize("rows", [1, 33])
def test_inputs_are_gathered_expert_after_expert(rows: int) -> None:
    routing = Routing(top_k=3)
    inputs = np.random.default_rng(6).normal(size=(MAX_ROWS, 20)).astype(np.float32)
    gathered = np.full((MAX_ROWS * 3, 20), np.nan, np.float32)
    routing.run(random_logits(rows, 7))
    way = Program([gather_op(inputs, 80, routing.routed, gathered)], 2)
    way.step[ROWS] = rows

    way.run()

    assert (gathered[: rows * 3] == inputs[routing.routed.rows[: rows * 3]]).all()
    assert np.isnan(gathered[rows * 3 :]).all()


@pytest.mark.parametrize("width", [4, 36, 64])
def test_what_experts_give_is_summed_in_the_order_of_their_ids(width: int) -> None:
    """3 · 2²⁵ and then -3 · 2²⁵ leave nothing of a 1 that comes between them, and all of one that comes after."""
    rows, top_k = 33, 4
    routed = Routed.empty(MAX_ROWS, EXPERTS, top_k)
    places = np.random.default_rng(7).permutation(rows * top_k).astype(np.int32)
    routed.places[: rows * top_k] = places
    routed.weights[: rows * top_k] = np.tile([3.0, 1.0, 3.0, 0.5], rows)
    given = np.full((MAX_ROWS * top_k, width), np.nan, np.float32)
    for row in range(rows):
        for i, value in enumerate([2.0**25, 1.0, -(2.0**25), 8.0]):
            given[places[row * top_k + i]] = value
    residual = np.full((MAX_ROWS, width), 0.5, np.float32)
    way = Program([combine_op(given, width, routed, residual)], 2)
    way.step[ROWS] = rows

    way.run()

    assert (residual[:rows] == 4.0).all() and (residual[rows:] == 0.5).all()
