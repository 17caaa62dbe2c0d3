"""What claims are worth, what guessing may cost, and that one namespace sees nothing of another."""

from __future__ import annotations

import random

import pytest

from services.worker.speculation.lease import LONGEST_LEASE
from services.worker.speculation.trust import (
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
    assert rate(source, claim) == pytest.approx(claim, abs=0.06), "believed as it is said, by grade"
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
    for _ in range(200):
        worth.learn(0.0)
    assert worth.seconds is not None and 0 < worth.seconds < 1e-4
    assert worth.hope is not None and worth.seconds < worth.hope < 2e-3, "nothing is hoped for for good"


def fruitless(worth: Worth, enough: float) -> int:
    """Questions that bring nothing, until no more is hoped of them than `enough`."""
    asked = 0
    while worth.hope is None or worth.hope > enough:
        worth.learn(0.0)
        asked += 1
    return asked


def test_questions_that_seldom_bring_much_are_not_given_up_after_a_few_that_bring_nothing() -> None:
    """Of ten, one brings the time of three steps; a question takes a twentieth of a step."""
    seldom, steady, chance = Worth(), Worth(), random.Random(4)
    for _ in range(60):
        seldom.learn(3.0 if chance.random() < 0.1 else 0.0)
        steady.learn(0.3)
    assert steady.seconds == pytest.approx(0.3) and steady.hope == pytest.approx(0.3, rel=0.1), "they don't vary"
    assert seldom.seconds is not None and seldom.hope is not None and seldom.hope > 1.4 * seldom.seconds
    assert fruitless(Worth(seldom), 0.05) > 40
    assert fruitless(Worth(), 0.05) == 1, "where nothing was ever brought, nothing is hoped for"
    waste = Worth()
    for _ in range(20):
        waste.learn(-0.02)
    assert waste.hope is not None and waste.hope < 0.0, "what costs more than it brings, and always did"


def test_a_request_begins_with_what_its_namespace_knows_and_goes_its_own_way() -> None:
    shared = Worth()
    for seconds in (1.0, 0.0, 2.0):
        shared.learn(seconds)
    own = Worth(shared)
    assert (own.seconds, own.hope) == (shared.seconds, shared.hope)
    before = shared.seconds, shared.hope
    own.learn(0.0)
    assert (shared.seconds, shared.hope) == before
    shared.learn(0.0)
    assert (own.seconds, own.hope) == (shared.seconds, shared.hope), "and both learn alike"


def test_how_long_drafts_are_of_late_is_remembered_for_a_while() -> None:
    record = Trust().record("n")
    assert record.longest == LONGEST_LEASE
    for _ in range(100):
        record.drafted(3)
    assert record.longest == 3
    record.drafted(20)
    record.drafted(3)
    assert 10 < record.longest < 20
