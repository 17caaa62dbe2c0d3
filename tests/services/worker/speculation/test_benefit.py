"""What asking for drafts brings, as far as it varies."""

from __future__ import annotations

import random

import pytest

from services.worker.speculation.benefit import LEAST_DRAFTS, Benefit, Worth, upper_of_all


def test_the_bound_falls_to_0_if_no_answer_brings_anything() -> None:
    benefit = Benefit()
    benefit.learn(1.0)
    for _ in range(200):
        benefit.learn(0.0)
    assert benefit.upper is not None and 0 < benefit.upper < 2e-3, "nothing is expected for good"


def fruitless(benefit: Benefit, enough: float) -> int:
    """Answers that bring nothing, until no more is expected of them than `enough`."""
    asked = 0
    while benefit.upper is None or benefit.upper > enough:
        benefit.learn(0.0)
        asked += 1
    return asked


def test_rarely_useful_requests_are_not_given_up_after_a_few_useless_answers() -> None:
    """One of ten brings the time of three steps; asking takes a twentieth of a step."""
    seldom, steady, chance = Benefit(), Benefit(), random.Random(4)
    for _ in range(60):
        seldom.learn(3.0 if chance.random() < 0.1 else 0.0)
        steady.learn(0.3)
    assert steady.upper == pytest.approx(0.3, rel=0.1), "they don't vary"
    assert seldom.upper is not None and seldom.upper > 1.4 * 0.3
    assert fruitless(Benefit(seldom), 0.05) > 40
    assert fruitless(Benefit(), 0.05) == 1, "where nothing was ever brought, nothing is expected"
    waste = Benefit()
    for _ in range(20):
        waste.learn(-0.02)
    assert waste.upper is not None and waste.upper < 0.0, "what always costs more than it brings"


def test_of_many_together_chance_is_a_smaller_share() -> None:
    """64 texts, each with one lucky draft of late: together they bring hardly more than their means."""
    lucky = Benefit()
    for seconds in [0.0] * 40 + [1.0] + [0.0] * 15:
        lucky.learn(seconds)
    losing = Benefit()
    for _ in range(30):
        losing.learn(-1.0)
    assert lucky.mean is not None and lucky.upper is not None and lucky.upper > 3.0 * lucky.mean
    together = upper_of_all([lucky] * 64)
    assert together is not None and 64 * lucky.mean < together < 1.5 * 64 * lucky.mean
    assert upper_of_all([lucky] * 64 + [losing]) == together, "its drafts aren't verified"
    assert upper_of_all([lucky]) == lucky.upper and upper_of_all([lucky, Benefit()]) is None


def test_a_request_starts_with_its_namespaces_benefit_and_learns_its_own() -> None:
    shared = Benefit()
    for seconds in (1.0, 0.0, 2.0):
        shared.learn(seconds)
    own = Benefit(shared)
    before = own.upper
    assert before is not None and before == shared.upper
    own.learn(0.0)
    assert shared.upper == before
    shared.learn(0.0)
    assert own.upper == shared.upper != before, "and both learn alike"


def test_losses_do_not_raise_the_bound() -> None:
    """Of two answers one saves a millisecond and one costs three."""
    benefit = Benefit()
    for _ in range(30):
        benefit.learn(0.001)
        benefit.learn(-0.003)
    assert benefit.upper is not None and benefit.upper < 0.0


def test_a_few_drafts_of_the_workers_own_say_nothing_and_requests_begin_with_what_all_have_shown() -> None:
    shared = Worth()
    for _ in range(LEAST_DRAFTS - 1):
        shared.learn(4, 0.5)
        assert shared.expected is None
    shared.learn(4, 0.5)
    assert shared.expected == pytest.approx(0.5) and shared.drafted == pytest.approx(4)
    own = Worth(shared)
    assert own.expected == pytest.approx(0.5)
    own.learn(4, 5.0)
    assert own.expected == pytest.approx(1.0) and shared.expected == pytest.approx(0.5)
