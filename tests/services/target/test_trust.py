"""What claims are worth, what guessing may cost, and that one namespace sees nothing of another."""

from __future__ import annotations

import random

import pytest

from services.target.lease import LONGEST_LEASE
from services.target.trust import (
    DISCOUNT,
    MOST_NAMESPACES,
    MOST_SOURCES,
    MOST_STEPS,
    SHARE,
    Record,
    Source,
    Trust,
    Worth,
    grades,
)


def rate(source: Source, claim: float) -> float:
    return source.rates[grades([claim])[0]]


def teach(source: Source, claim: float, truth: float, tokens: int) -> None:
    chance = random.Random(3)
    for _ in range(tokens):
        source.learn(grades([claim]), chance.random() < truth)


@pytest.mark.parametrize("truth", [0.0, 0.2, 0.6, 1.0])
@pytest.mark.parametrize("claim", [0.05, 0.5, 0.99])
def test_a_claim_becomes_worth_what_was_seen_whatever_it_says(claim: float, truth: float) -> None:
    source = Source()
    assert rate(source, claim) == pytest.approx(DISCOUNT * claim, abs=0.06)
    teach(source, claim, truth, 400)
    assert rate(source, claim) == pytest.approx(truth, abs=0.15)


def test_nothing_is_believed_or_disbelieved_for_good() -> None:
    source = Source()
    for truth in (0.0, 1.0, 0.0):
        teach(source, 0.99, truth, 300)
        assert rate(source, 0.99) == pytest.approx(truth, abs=0.05)


def test_of_a_draft_all_tokens_before_the_first_wrong_one_stood() -> None:
    source = Source()
    for _ in range(300):
        source.learn(grades([0.9, 0.5, 0.3]), False)
    assert rate(source, 0.9) > 0.95 and rate(source, 0.5) > 0.95 and rate(source, 0.3) < 0.05
    assert rate(source, 0.7) == Source().rates[grades([0.7])[0]], "of other claims nothing is known"


def test_namespaces_know_nothing_of_each_other_and_requests_without_one_are_alone() -> None:
    trust = Trust()
    teach(trust.record("a").source("s"), 0.99, 0.0, 300)
    trust.record("a").account(-1.0)
    trust.record("a").worth["ahead"].learn(5.0)
    assert trust.record("a").source("s").rates != Source().rates
    for other in (trust.record("b"), trust.record(""), Trust().record("a")):
        assert other.source("s").rates == Source().rates
        assert other.purse is None and other.worth["ahead"].seconds is None
    assert trust.record("") is not trust.record("") and len(trust) == 2


def test_its_memory_is_bounded() -> None:
    trust = Trust()
    first = trust.record("0")
    for number in range(MOST_NAMESPACES + 100):
        trust.record(str(number))
        trust.record("0")
    assert len(trust) == MOST_NAMESPACES and trust.record("0") is first
    for number in range(10 * MOST_SOURCES):
        first.source(str(number))
    assert len(first.sources) <= MOST_SOURCES + 1


def test_guessing_pays_what_it_costs_out_of_what_it_brought_and_a_small_part_of_the_time() -> None:
    record = Record(shared=True)
    assert record.solvent, "before anything is known of steps"
    spent = 0.0
    for _ in range(10_000):
        record.time_passed(0.01, 0.01)
        if record.solvent:
            record.account(-0.005)
            spent += 0.005
    assert spent < 10_000 * 0.01 * SHARE + 0.02
    record.account(100.0)
    record.time_passed(0.01, 0.01)
    assert record.purse == MOST_STEPS * 0.01, "a long good time is no licence"


def test_what_a_question_brings_follows_what_it_brought() -> None:
    worth = Worth()
    worth.learn(1.0)
    assert worth.seconds == 1.0
    for _ in range(100):
        worth.learn(0.0)
    assert worth.seconds is not None and 0 < worth.seconds < 1e-4


def test_how_long_drafts_are_of_late_is_remembered_for_a_while() -> None:
    record = Trust().record("n")
    assert record.longest == LONGEST_LEASE
    for _ in range(100):
        record.drafted(3)
    assert record.longest == 3
    record.drafted(20)
    record.drafted(3)
    assert 10 < record.longest < 20
