"""The yardstick itself: exact probabilities by hand, and what chi-square and Holm say of known figures."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernels.verify.cpu import verify
from kernels.verify.questions import Rule
from tests.laws.distribution import drafters as by
from tests.laws.distribution.__main__ import distances, table
from tests.laws.distribution.cases import PARAMETERS, SMALL
from tests.laws.distribution.statistics import holm, p_value, p_values, total_variation, total_variation_of_chance
from tests.laws.distribution.toy import PROMPT, Sampling, Toy, blocks, distribution, edited

LOGITS = np.log([[0.4, 0.3, 0.2, 0.1]])


def given(**more: float) -> list[float]:
    return [round(float(x), 6) for x in distribution(LOGITS, Rule(**{"temperature": 1.0} | more))[0]]  # type: ignore[arg-type]


def test_a_distribution_by_hand() -> None:
    assert given() == [0.4, 0.3, 0.2, 0.1]
    assert given(temperature=0.0) == [1, 0, 0, 0]
    assert given(temperature=0.5) == [round(x / 0.3, 6) for x in (0.16, 0.09, 0.04, 0.01)]
    assert given(top_k=2) == [0.571429, 0.428571, 0, 0]
    assert given(top_p=0.65) == [0.571429, 0.428571, 0, 0]
    assert given(top_p=0.75) == [0.444444, 0.333333, 0.222222, 0]
    assert given(top_k=3, top_p=0.7) == [0.571429, 0.428571, 0, 0], "of 0.9, 0.7 is 0.63"
    assert given(min_p=0.5) == [0.444444, 0.333333, 0.222222, 0]


def test_edits_by_hand() -> None:
    """PROMPT holds 0 and 1; the text holds 1 twice and 2 once."""
    rule = Rule(temperature=1.0, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    scores = edited(np.array([[4.0, 4.0, -1.0, 1.0]]), np.array([[1, 2, 1]]), Sampling(rule, {3: 1.0}, (0, 1, 2)))
    assert set(PROMPT) == {0, 1}
    assert scores[0].tolist() == [2.0, 2.0 - 0.5 - 0.5, -2.0 - 0.5 - 0.25, -math.inf]


@pytest.mark.parametrize("name", PARAMETERS)
def test_blocks_are_one_in_all_and_a_shorter_one_is_what_longer_ones_share(name: str) -> None:
    three = blocks(SMALL, PARAMETERS[name], 3)
    assert three.sum() == pytest.approx(1)
    assert three.reshape(64, 8).sum(1) == pytest.approx(blocks(SMALL, PARAMETERS[name], 2))


def test_a_block_is_the_product_along_its_text() -> None:
    toy = Toy(vocab_size=3)
    table, found = toy.logits().astype(np.float64), blocks(toy, Sampling(Rule(temperature=1.0)), 2).reshape(3, 3)

    def probs(before: int, last: int) -> np.ndarray:
        return np.exp(table[before, last]) / np.exp(table[before, last]).sum()

    for first in range(3):
        for second in range(3):
            assert found[first, second] == pytest.approx(probs(*PROMPT)[first] * probs(PROMPT[1], first)[second])


def test_chi_square_by_hand() -> None:
    """(10^2 + 10^2) / 50 = 4 with one degree of freedom: erfc(sqrt(2))."""
    assert p_value(np.array([60, 40]), np.array([0.5, 0.5])) == pytest.approx(math.erfc(math.sqrt(2)))
    # With two degrees of freedom it is e^(-x / 2), and x is (20^2 + 10^2 + 10^2) / 100 = 6.
    assert p_value(np.array([120, 90, 90]), np.full(3, 1 / 3)) == pytest.approx(math.exp(-3))


def test_what_cannot_come_and_comes_is_found_and_rare_cells_are_counted_together() -> None:
    assert p_value(np.array([99, 1, 0]), np.array([1.0, 0.0, 0.0])) == 0.0
    assert p_value(np.array([100, 0]), np.array([1.0, 0.0])) == 1.0
    rare = np.concatenate([[0.4, 0.4], np.full(200, 0.001)])
    together = p_value(np.concatenate([[400, 400], np.ones(200)]), rare)
    assert together == pytest.approx(1.0), "cells of one expected each, none of which is looked at alone"


def test_p_values_of_honest_draws_are_spread_evenly() -> None:
    chance = np.random.default_rng(1)
    probs = chance.dirichlet(np.full(27, 0.5))
    found = [p for _ in range(300) for p in p_values(chance.multinomial(20_000, probs), probs, 3, 3)[:1]]
    assert np.mean(found) == pytest.approx(0.5, abs=0.06)
    assert np.mean(np.array(found) < 0.1) == pytest.approx(0.1, abs=0.06)


def test_places_and_pairs_are_looked_at_too() -> None:
    """Six figures of a block of three: the whole, three places, two pairs."""
    probs = np.full(27, 1 / 27)
    assert len(p_values(np.full(27, 100), probs, 3, 3)) == 6


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.5]) == pytest.approx([1.0, 1.0])


def test_distances_by_hand() -> None:
    assert total_variation(np.array([6, 4, 0]), np.array([0.5, 0.3, 0.2])) == pytest.approx(0.2)
    chance = np.random.default_rng(2)
    probs = chance.dirichlet(np.full(50, 1.0))
    honest = np.mean([total_variation(chance.multinomial(10_000, probs), probs) for _ in range(50)])
    assert total_variation_of_chance(probs, 10_000) == pytest.approx(honest, rel=0.05)


# Drafters -------------------------------------------------------------------------------------------------


def test_what_a_drafter_says_it_draws_from_it_draws_from() -> None:
    """Else rejection would be blamed for it."""
    chance, context = np.random.default_rng(3), np.tile([2, 3], (50_000, 1))
    for drafter in (by.drawing(SMALL, 2), by.drawing(SMALL, 2, zeros=True)):
        drafts = drafter(context, chance)
        assert drafts.probs is not None
        counts = np.bincount(drafts.tokens[:, 0], minlength=8)
        assert p_value(counts, drafts.probs[0, 0].astype(np.float64)) > 1e-3
        assert drafts.probs.sum(-1) == pytest.approx(1, abs=1e-5)


def test_drafters_know_what_their_names_say() -> None:
    chance, context = np.random.default_rng(3), np.array([[2, 3], [4, 5]])
    table = SMALL.logits()
    right, wrong = by.right(SMALL, 3)(context, chance).tokens, by.wrong(SMALL, 3)(context, chance).tokens
    assert right[0, 0] == table[2, 3].argmax() and right[0, 1] == table[3, right[0, 0]].argmax()
    assert wrong[1, 0] == table[4, 5].argmin()
    assert by.copying(3)(context, chance).tokens.tolist() == [[2, 3, 2], [4, 5, 4]]
    assert not np.isin(by.strange(by.copying(3), 1.0)(context, chance).tokens, range(8)).any()
    grown = by.tree(SMALL)(np.tile(context, (500, 1)), chance)
    assert all(len(set(row)) == 3 for row in grown.tokens[:, :3].tolist()), "three different guesses for one place"


# The benchmark --------------------------------------------------------------------------------------------


def test_the_table_says_how_far_off_the_others_are() -> None:
    found = distances(verify, 2000)
    far = {(strategy, drafts): distance for strategy, _, drafts, distance in found}
    assert far["typical", "likeliest"] > 0.3 and far["topp", "likeliest"] > 0.3
    assert table(found)[0].startswith("| strategy | with | likeliest |")
