"""Each sampling parameter does what kernels/sample/README.md says, and the sampler samples."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kernels.sample.noise import gumbel
from kernels.sample.reference import (
    History,
    NotFinite,
    Rule,
    adjusted,
    allowed,
    choose,
    likeliest,
    logprobs_of,
    lowest_argmax,
    lowest_argmaxes,
)

NOTHING = History()
TEN = torch.tensor([1.0, 4.0, 2.0, -1.0, 3.0, 0.0, -2.0, 2.5, 0.5, -3.0])


def plain(logits: torch.Tensor, rule: Rule, position: int, history: History = NOTHING) -> int:
    """The README in its shortest form, without anything that makes it fast."""
    x = logits.double()
    for token in set(history.prompt) | set(history.counts):
        x[token] = x[token] / rule.repetition_penalty if x[token] > 0 else x[token] * rule.repetition_penalty
    for token, count in history.counts.items():
        x[token] -= rule.frequency_penalty * count + rule.presence_penalty
    for token, bias in rule.bias.items():
        x[token] += bias
    if history.generated < rule.min_tokens:
        for token in rule.held_back:
            x[token] = -math.inf
    if rule.greedy:
        return int((x == x.max()).nonzero()[0])
    z = (x - x.max()) / rule.temperature
    order = sorted(range(len(z)), key=lambda i: (-z[i].item(), i))
    order = order[: rule.top_k] if rule.top_k else order
    mass = torch.softmax(z[order], 0).cumsum(0).tolist()
    reach = next((n for n, m in enumerate(mass) if m >= rule.top_p), len(order) - 1) + 1
    order = order[:reach] if rule.top_p < 1 else order
    if rule.min_p:
        order = [i for i in order if z[i].item() >= math.log(rule.min_p)]
    noisy = z + gumbel(rule.seed, position, torch.arange(len(z))).double()
    return min(order, key=lambda i: (-noisy[i].item(), i))


RULES: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.2},
    {"temperature": 5.0},
    {"temperature": 1e-6},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 1.0, "top_p": 0.0},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 2.0, "top_p": 0.999},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1.3, "top_k": 100, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 1.0, "bias": {3: 100.0}},
    {"temperature": 1.0, "bias": {7: -100.0, 8: 2.5}},
    {"repetition_penalty": 1.3},
    {"temperature": 0.8, "repetition_penalty": 0.7, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"presence_penalty": 2.0, "min_tokens": 9, "held_back": (0, 5)},
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_parameter_means_what_the_readme_says(rule: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(7)
    history = History((1, 2, 3, 900), {4: 2, 5: 1, 3: 7}, generated=4)
    for seed in range(60):
        logits = torch.randn(1000, generator=generator) * (1 + seed % 5)
        if seed % 3 == 0:
            # Many equal values, as bf16 gives them.
            logits = (logits * 2).round() / 2
        before = logits.clone()
        one = Rule(**rule, seed=seed)
        assert choose(logits, one, history, seed * 3) == plain(logits, one, seed * 3, history)
        assert torch.equal(logits, before), "the row is left as it was"


@pytest.mark.parametrize("temperature", [0.7, 1.0, 3.0])
def test_what_is_left_out_for_speed_never_wins(temperature: float) -> None:
    """A whole vocabulary: the arg-max over the contenders is that over everyone."""
    generator = torch.Generator().manual_seed(8)
    ids = torch.arange(49152)
    for seed in range(40):
        logits = torch.randn(49152, generator=generator) * (seed % 9)
        top, _ = lowest_argmax(logits)
        noisy = (logits - top).mul_(1.0 / temperature) + gumbel(seed, 11, ids)
        assert choose(logits, Rule(temperature=temperature, seed=seed), NOTHING, 11) == lowest_argmax(noisy)[1]


@pytest.mark.parametrize(
    "rule",
    [{}, {"top_k": 4}, {"top_p": 0.9}, {"min_p": 0.1}, {"bias": {0: 2.0}}],
    ids=str,
)
def test_tokens_come_as_often_as_they_should(rule: dict[str, Any]) -> None:
    """Chi-square of 20 000 draws against the softmax of what is allowed."""
    draws = 20_000
    one = Rule(temperature=1.3, **rule)
    scores = adjusted(TEN, one, NOTHING)
    kept = allowed((scores - scores.max()) / 1.3, one)
    kept = torch.arange(10) if kept is None else kept
    expected = torch.zeros(10, dtype=torch.float64)
    expected[kept] = torch.softmax(scores[kept].double() / 1.3, 0) * draws
    seen = torch.zeros(10, dtype=torch.float64)
    for draw in range(draws):
        one.seed = draw % 100
        seen[choose(TEN, one, NOTHING, draw // 100)] += 1
    assert (seen[expected == 0] == 0).all()
    there = expected > 0
    chi = ((seen - expected)[there] ** 2 / expected[there]).sum().item()
    degrees = int(there.sum()) - 1
    # Wilson-Hilferty: this is passed once in ten thousand.
    limit = degrees * (1 - 2 / (9 * degrees) + 3.72 * math.sqrt(2 / (9 * degrees))) ** 3
    assert chi < limit


def test_rare_tokens_are_sampled_too() -> None:
    """49 152 tokens of which one has half of the mass: the rest shares the other half, each 1e-5."""
    logits = torch.zeros(49152)
    logits[77] = math.log(49151)
    common = sum(choose(logits, Rule(temperature=1.0, seed=seed), NOTHING, 5) == 77 for seed in range(1000))
    assert 430 < common < 570
    rare = {choose(logits, Rule(temperature=1.0, seed=seed), NOTHING, 6) for seed in range(300)}
    assert len(rare) > 120


def test_the_seed_and_the_position_decide_and_nothing_else_does() -> None:
    flat = torch.zeros(1000)
    first = [choose(flat, Rule(temperature=1.0, seed=1), NOTHING, i) for i in range(50)]
    assert first == [choose(flat, Rule(temperature=1.0, seed=1), NOTHING, i) for i in range(50)]
    second = [choose(flat, Rule(temperature=1.0, seed=2), NOTHING, i) for i in range(50)]
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 5
    assert len(set(first)) > 40


# Arg-max -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 7, 511, 512, 513, 1024, 49152, 50000])
def test_ties_go_to_the_lowest_id(dtype: torch.dtype, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    # Small whole numbers: every row has its maximum in many places.
    logits = torch.randint(-3, 4, (6, size), generator=generator).to(dtype)
    tops, ids = lowest_argmaxes(logits)
    for row, top, found in zip(logits, tops, ids, strict=True):
        assert top == row.max().item()
        assert found == int((row == row.max()).nonzero()[0])


def test_a_row_has_the_same_argmax_alone_and_among_others() -> None:
    logits = torch.randn(40, 5000, generator=torch.Generator().manual_seed(3)).bfloat16()
    together = lowest_argmaxes(logits)[1]
    assert together == [lowest_argmaxes(row.unsqueeze(0))[1][0] for row in logits]


@pytest.mark.parametrize("place", [0, 300, 600, 1029])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused(place: int, value: float) -> None:
    logits = torch.zeros(1030)
    logits[place] = value
    for rule in (Rule(), Rule(temperature=1.0), Rule(temperature=1.0, top_p=0.5)):
        with pytest.raises(NotFinite):
            choose(logits, rule, NOTHING, 0)


def test_a_row_that_allows_nothing_is_refused_and_minus_infinity_is_no_fault() -> None:
    with pytest.raises(NotFinite):
        choose(torch.full((600,), -math.inf), Rule(temperature=1.0), NOTHING, 0)
    logits = torch.full((600,), -math.inf)
    logits[5] = 1.0
    assert choose(logits, Rule(temperature=1.0), NOTHING, 0) == 5


# Parts -------------------------------------------------------------------------------------------------


def test_the_edge_of_top_k_runs_through_ties_by_id() -> None:
    scores = torch.zeros(5000)
    scores[[10, 4000]] = 1.0
    assert likeliest(scores, 4).tolist() == [10, 4000, 0, 1]
    assert likeliest(scores, 2).tolist() == [10, 4000]
    assert likeliest(scores, 5000).tolist()[:3] == [10, 4000, 0]


def test_logprobs_are_of_the_raw_logits() -> None:
    value, top = logprobs_of(TEN, 4, 3)
    raw = torch.log_softmax(TEN, 0)
    assert value == pytest.approx(raw[4].item(), abs=1e-5)
    assert [i for i, _ in top] == [1, 4, 7]
    assert [v for _, v in top] == pytest.approx([raw[1].item(), raw[4].item(), raw[7].item()], abs=1e-5)


def test_a_bias_of_100_wins_at_any_temperature() -> None:
    for temperature in (0.0, 0.5, 2.0):
        rule = Rule(temperature=temperature, bias={9: 100.0})
        assert {choose(TEN, rule, NOTHING, position) for position in range(50)} == {9}
