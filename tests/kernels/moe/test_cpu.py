"""Routing as compiled ops against plain torch; a row goes where it would go alone, with the same bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from kernels.cpu_instructions import ALL, Instructions
from kernels.cpu_program import ROWS, Program
from kernels.linear.cpu import Rows, input_dtype, path, quantize_rows
from kernels.linear.packing import pack
from kernels.linear.reference import linear, linear_int8
from kernels.moe import reference
from kernels.moe.cpu import PlaceBuffers, Routed, combine_op, expert_ops, gather_op, route_ops, widen_op
from kernels.norm_rope_act.reference import gated
from tests.kernels.moe.facts import PLAIN

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

    def __init__(
        self,
        bias: list[float] | None = None,
        threads: int = 1,
        experts: int = EXPERTS,
        own: range | None = None,
        **facts: Any,
    ) -> None:
        self.facts = PLAIN | facts
        self.logits = np.full((MAX_ROWS, experts), np.nan, np.float32)
        self.bias = None if bias is None else torch.tensor(bias)
        own = range(experts) if own is None else own
        self.routed = Routed.empty(MAX_ROWS, len(own), self.facts["top_k"], own.start)
        others = {name: value for name, value in self.facts.items() if name != "top_k"} | {"among": experts}
        self.program = Program(route_ops(self.logits.ctypes.data, self.bias, self.routed, **others), threads)

    def run(self, logits: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """ids and weights, [R, top_k]."""
        rows, shape = len(logits), (-1, self.facts["top_k"])
        self.logits[:rows], self.logits[rows:] = logits.numpy(), np.nan
        routed = self.routed
        for array in (routed.ids, routed.starts, routed.chosen, routed.rows, routed.places):
            array[:] = -99
        self.program.step[ROWS] = rows
        self.program.run()
        count = rows * self.facts["top_k"]
        ids, weights = self.routed.ids[:count].reshape(shape), self.routed.weights[:count].reshape(shape)
        return ids.copy(), weights.copy()

    def expected(self, logits: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        ids, weights = reference.route(logits, self.bias, **self.facts)
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
    chosen = sorted(set(ids.flatten().tolist()))
    assert routed.chosen.tolist() == chosen + [-1] * (EXPERTS - len(chosen))
    for i, place in enumerate(routed.places[: rows * 3]):
        assert routed.rows[place] == i // 3
        assert routed.starts[ids.flat[i]] <= place < routed.starts[ids.flat[i] + 1]


@pytest.mark.parametrize("own", [range(0, 5), range(5, 12), range(4, 5)])
def test_of_the_experts_of_other_ranks_there_are_no_places(own: range) -> None:
    rows = 33
    routing = Routing(top_k=3, own=own)
    ids, _ = routing.run(random_logits(rows, 5))
    assert (ids == Routing(top_k=3).run(random_logits(rows, 5))[0]).all(), "all are chosen among"
    routed = routing.routed
    for index, expert in enumerate(own):
        places = range(routed.starts[index], routed.starts[index + 1])
        assert routed.rows[places].tolist() == [row for row in range(rows) if expert in ids[row]]
    chosen = [expert - own.start for expert in own if expert in ids]
    assert routed.chosen.tolist() == chosen + [-1] * (len(own) - len(chosen))
    assert [place >= 0 for place in routed.places[: rows * 3]] == [expert in own for expert in ids.flatten()]
    assert ((routed.rows[: rows * 3] >= 0) & (routed.rows[: rows * 3] < rows)).all()


@pytest.mark.parametrize("rows", [1, 33])
def test_inputs_are_gathered_expert_after_expert(rows: int) -> None:
    routing = Routing(top_k=3)
    inputs = np.random.default_rng(6).normal(size=(MAX_ROWS, 20)).astype(np.float32)
    gathered = np.full((MAX_ROWS * 3, 20), np.nan, np.float32)
    routing.run(random_logits(rows, 7))
    way = Program([gather_op(inputs.ctypes.data, 80, routing.routed, gathered.ctypes.data)], 2)
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
    way = Program([combine_op(given.ctypes.data, width, routed, residual.ctypes.data)], 2)
    way.step[ROWS] = rows

    way.run()

    assert (residual[:rows] == 4.0).all() and (residual[rows:] == 0.5).all()


def test_rows_are_widened_to_float32() -> None:
    narrow = torch.randn(20, 28, generator=torch.Generator().manual_seed(8)).bfloat16()
    wide = torch.full((20, 28), torch.nan)
    program = Program([widen_op(Rows(narrow.data_ptr(), 56), 28, wide.data_ptr())], 2)
    program.step[ROWS] = 19
    program.run()
    assert torch.equal(wide[:19], narrow[:19].float()) and wide[19:].isnan().all()


# All together --------------------------------------------------------------------------------------------

HIDDEN, WIDE = 64, 40
# Kind of the linears, type of what stands between, tolerance of the largest: bfloat16 rounds what is gated, and
# in int8 a rounded value may fall to the next code.
KINDS = {
    "float32": ("float32", torch.float32, 2e-6),
    "bfloat16": ("bfloat16", torch.bfloat16, 5e-3),
    "int8": ("int8", torch.float32, 2e-3),
    "int8 between bfloat16": ("int8", torch.bfloat16, 1e-2),
}
NARROW = Instructions(tiles=False, bfloat16=False, wide=False)
EVERY = [
    pytest.param(kind, use, id=f"{kind}{'' if use is ALL else ', portable'}")
    for kind in KINDS
    for use in ((ALL, NARROW) if path(KINDS[kind][0]) != "portable" else (NARROW,))
]


class Layer:
    """Routing and experts, from logits and rows to the residual."""

    def __init__(self, kind: str, use: Instructions, threads: int = 2, biased: bool = False) -> None:
        self.kind, self.dtype, self.tolerance = KINDS[kind]
        if self.kind == "bfloat16":
            self.dtype = input_dtype(self.kind, use)
        noise = torch.Generator().manual_seed(0)
        self.gate_up = (torch.randn(EXPERTS, 2 * WIDE, HIDDEN, generator=noise) / 8).to(KINDS[kind][1])
        self.down = (torch.randn(EXPERTS, HIDDEN, WIDE, generator=noise) / 8).to(KINDS[kind][1])
        self.biases = (torch.randn(EXPERTS, 2 * WIDE, generator=noise), torch.randn(EXPERTS, HIDDEN, generator=noise))
        self.biased = biased
        self.routing = Routing(top_k=3, normalize=True)
        self.x = torch.full((MAX_ROWS, HIDDEN), torch.nan, dtype=self.dtype)
        self.bytes, self.scales = torch.zeros(MAX_ROWS, HIDDEN, dtype=torch.uint8), torch.zeros(MAX_ROWS)
        self.residual = torch.zeros(MAX_ROWS, HIDDEN)
        self.buffers = PlaceBuffers(MAX_ROWS, 3, HIDDEN, WIDE, self.dtype, self.kind == "int8")
        rows = Rows(self.x.data_ptr(), HIDDEN * self.x.element_size())
        ops = []
        if self.kind == "int8":
            quantized = Rows(self.bytes.data_ptr(), HIDDEN, self.scales.data_ptr())
            ops.append(quantize_rows(rows, self.dtype, HIDDEN, quantized))
            rows = quantized
        ops += expert_ops(
            pack(list(self.gate_up), self.kind, list(self.biases[0]) if biased else None, gated=True),
            pack(list(self.down), self.kind, list(self.biases[1]) if biased else None), self.routing.routed,
            rows, self.buffers, self.residual.data_ptr(), threads=threads, use=use,
            activation="clamped_swiglu" if biased else "silu", limit=1.5,
        )  # fmt: skip
        self.program = Program(ops, threads)

    def run(self, logits: torch.Tensor, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        rows = len(x)
        self.routing.run(logits)
        self.x[:rows], self.residual[:rows] = x.to(self.dtype), residual
        self.residual[rows:] = torch.nan
        self.program.step[ROWS] = rows
        self.program.run()
        assert self.residual[rows:].isnan().all()
        return self.residual[:rows].clone()

    def expected(self, logits: torch.Tensor, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        ids, weights = self.routing.expected(logits)
        compute = linear_int8 if self.kind == "int8" else linear
        out = residual.clone()
        for row, (chosen, shares) in enumerate(zip(ids, weights, strict=True)):
            for expert, share in zip(chosen, shares, strict=True):
                first, last = (bias[expert] if self.biased else None for bias in self.biases)
                wide = compute(x[row : row + 1].to(self.dtype), self.gate_up[expert], first)
                inner = gated(wide, "clamped_swiglu", 1.5) if self.biased else gated(wide)
                out[row] += share * compute(inner.to(self.dtype), self.down[expert], last)[0]
        return out


def made_of(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """logits, x and residual."""
    noise = torch.Generator().manual_seed(11)
    x, residual = torch.randn(rows, HIDDEN, generator=noise), torch.randn(rows, HIDDEN, generator=noise)
    return random_logits(rows, 12), x, residual


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("kind", "use"), EVERY)
def test_experts_give_what_the_reference_gives(kind: str, use: Instructions, biased: bool) -> None:
    layer, given = Layer(kind, use, biased=biased), made_of(45)
    out, expected = layer.run(*given), layer.expected(*given)
    assert (out - expected).abs().max() <= layer.tolerance * expected.abs().max()


@pytest.mark.parametrize(("kind", "use"), EVERY)
def test_what_experts_add_to_a_row_depends_on_the_row_alone(kind: str, use: Instructions) -> None:
    """The residual takes away nearly all that the experts give: what is left is rounding."""
    layer, single = Layer(kind, use), Layer(kind, use, threads=1)
    logits, x, residual = made_of(MAX_ROWS)
    residual = -(layer.run(logits, x, torch.zeros_like(residual)))
    whole = layer.run(logits, x, residual)
    for first, rows in ((0, 1), (33, 1), (69, 1), (5, 8), (60, 10), (1, 33)):
        those = slice(first, first + rows)
        assert torch.equal(layer.run(logits[those], x[those], residual[those]), whole[those])
    assert torch.equal(single.run(logits, x, residual), whole)
