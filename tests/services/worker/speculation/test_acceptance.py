"""Measured acceptance by source and confidence, and that one namespace sees nothing of another."""

from __future__ import annotations

import random

import pytest

from services.api.names import MODEL_ANSWERS
from services.worker.speculation.acceptance import MOST_NAMESPACES, MOST_SOURCES, AcceptanceTable, Rates, buckets_of


def rate(rates: Rates, told: float) -> float:
    return rates.values[buckets_of([told])[0]]


def teach(rates: Rates, told: float, truth: float, tokens: int) -> None:
    chance = random.Random(3)
    for _ in range(tokens):
        rates.learn(buckets_of([told]), chance.random() < truth)


@pytest.mark.parametrize("truth", [0.0, 0.2, 0.6, 1.0])
@pytest.mark.parametrize("told", [0.05, 0.5, 0.99])
def test_a_rate_converges_to_measured_acceptance_whatever_the_confidence(told: float, truth: float) -> None:
    rates = Rates()
    assert rate(rates, told) == pytest.approx(told, abs=0.06), "taken as it is told, by bucket"
    teach(rates, told, truth, 400)
    assert rate(rates, told) == pytest.approx(truth, abs=0.15)


def test_a_rate_follows_a_drafter_that_changes() -> None:
    rates = Rates()
    for truth in (0.0, 1.0, 0.0):
        teach(rates, 0.99, truth, 300)
        assert rate(rates, 0.99) == pytest.approx(truth, abs=0.05)


def test_all_tokens_before_the_first_wrong_one_count_as_accepted() -> None:
    rates = Rates()
    for _ in range(300):
        rates.learn(buckets_of([0.9, 0.5, 0.3]), False)
    assert rate(rates, 0.9) > 0.95 and rate(rates, 0.5) > 0.95 and rate(rates, 0.3) < 0.05
    assert rate(rates, 0.7) == Rates().values[buckets_of([0.7])[0]], "of other buckets nothing is known"


def test_one_wrong_token_says_little_against_what_the_drafter_tells() -> None:
    rates = Rates()
    rates.learn(buckets_of([0.9]), False)
    assert 0.5 < rate(rates, 0.9) < rate(Rates(), 0.9)


def test_a_second_child_has_a_rate_of_its_own_because_its_sibling_was_wrong() -> None:
    rates, (first, second) = Rates(), buckets_of([0.5, 0.5], [False, True])
    rates.learn([second], False)
    assert rates.values[second] < rates.values[first] == Rates().values[first]


def test_a_step_that_waits_asks_for_somewhat_more_than_the_longest_recent_draft() -> None:
    acceptance = AcceptanceTable().of("a")
    least = acceptance.enough
    acceptance.drafted(60)
    assert 60 < acceptance.enough < 90
    for _ in range(100):
        acceptance.drafted(3)
    assert acceptance.enough <= least


def test_namespaces_share_no_rates_and_requests_without_one_have_their_own() -> None:
    table = AcceptanceTable()
    teach(table.of("a").rates("s"), 0.99, 0.0, 300)
    table.of("a").benefit["ahead"].learn(5.0)
    assert table.of("a").rates("s").values != Rates().values
    for other in (table.of("b"), table.of(""), AcceptanceTable().of("a")):
        assert other.rates("s").values == Rates().values
        assert other.benefit["ahead"].upper is None
    assert table.of("") is not table.of("") and len(table) == 2


def test_what_holds_no_callers_text_is_learned_from_all() -> None:
    table = AcceptanceTable()
    answers = f"corpus:{MODEL_ANSWERS}"
    teach(table.of("a").rates(answers), 0.99, 0.0, 300)
    assert rate(table.of("b").rates(answers), 0.99) < 0.1 and rate(table.of("").rates(answers), 0.99) < 0.1
    assert table.of("b").rates("corpus:own").values == Rates().values


def test_its_memory_is_bounded() -> None:
    table = AcceptanceTable()
    first = table.of("0")
    for number in range(MOST_NAMESPACES + 100):
        table.of(str(number))
        table.of("0")
    assert len(table) == MOST_NAMESPACES and table.of("0") is first
    for number in range(10 * MOST_SOURCES):
        first.rates(str(number))
    assert len(first.sources) <= MOST_SOURCES + 1
