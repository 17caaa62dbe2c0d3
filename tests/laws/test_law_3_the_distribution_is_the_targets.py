"""Law 3, of the distribution: what a lossless strategy emits is what the target alone would, whatever is drafted.

Joint blocks of two to four tokens, produced by several verify steps, so that anything used twice between steps shows;
against exact probabilities by enumeration. And the same harness finds a verifier that is off by one percent.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import planted
import pytest
from planted import Verifier

from kernels.verify.cpu import verify
from kernels.verify.questions import ALL, BLOCK, MATCH, NONE, REJECTION
from kernels.verify.reference import verify as plain_verify
from tests.laws.distribution import drafters as by
from tests.laws.distribution.cases import PLAIN, SMALL, certain, lossless, lossy, with_probabilities
from tests.laws.distribution.draws import BAR, Case, draw, least_p
from tests.laws.distribution.statistics import holm, p_values
from tests.laws.distribution.toy import blocks

LOSSLESS = {case.name: case for case in lossless()}
# One of each kind; the others and ten times the draws: the slow test.
FAST = [
    "rejection, biased",
    "rejection, of every length",
    "rejection, chains and trees",
    "rejection, draws, half of them certain",
    "rejection, penalties, draws",
    "rejection, all filters, biased",
    "block, always right",
    "block, biased",
    "block, draws far off",
    "block, draws of a few",
    "block, draws, half of them certain",
    "block, draws of every length",
    "block, out of the vocabulary",
    "block, top_p, draws",
    "block, penalties, trees",
    "block, 32 ids",
    "block, four tokens",
    "target_match, all filters, biased",
]


def test_lossless_strategies_keep_the_distribution_of_blocks_of_tokens() -> None:
    least = least_p([LOSSLESS[name] for name in FAST], verify, 100_000)
    assert {name: p for name, p in least.items() if p <= BAR} == {}


@pytest.mark.slow
def test_lossless_strategies_keep_it_in_a_million_draws_of_every_case() -> None:
    least = least_p(LOSSLESS.values(), verify, 1_000_000)
    assert {name: p for name, p in least.items() if p <= BAR} == {}


def test_target_match_gives_the_same_text_whatever_was_drafted() -> None:
    alone = draw(Case("", SMALL, PLAIN, MATCH, by.nothing()), verify, 20_000)
    for name, drafter in (certain(SMALL) | with_probabilities(SMALL)).items():
        assert np.array_equal(draw(Case(name, SMALL, PLAIN, MATCH, drafter), verify, 20_000), alone), name


def test_the_reference_draws_what_the_compiled_one_draws() -> None:
    """So what is said of a million draws of the one is said of the other."""
    for name in ("rejection, chains and trees", "block, draws, half of them certain", "block, penalties, trees"):
        case = LOSSLESS[name]
        assert np.array_equal(draw(case, plain_verify, 240, batch=80), draw(case, verify, 240, batch=80)), name


# What the harness would see ------------------------------------------------------------------------------


def least_of(strategy: int, drafter: by.Drafter, fault: str, draws: int) -> float:
    counts = draw(Case(fault, SMALL, PLAIN, strategy, drafter), Verifier(fault), draws)
    return min(holm(p_values(counts, blocks(SMALL, PLAIN, 3), SMALL.vocab_size, 3)))


@pytest.mark.parametrize("strategy", [REJECTION, BLOCK])
def test_a_correct_verifier_with_other_noise_passes(strategy: int) -> None:
    for drafter in (by.right(SMALL, 3), by.biased(SMALL, 3), by.drawing(SMALL, 3)):
        assert least_of(strategy, drafter, planted.SOUND, 100_000) > BAR


@pytest.mark.parametrize("strategy", [REJECTION, BLOCK])
@pytest.mark.parametrize("fault", [planted.WHOLE, planted.SAME_NOISE])
def test_a_planted_fault_is_found(strategy: int, fault: str) -> None:
    for drafter in (by.right(SMALL, 3), by.biased(SMALL, 3), by.drawing(SMALL, 3)):
        assert least_of(strategy, drafter, fault, 50_000) < BAR / 100


def test_a_block_verifier_with_an_unweighted_residual_is_detected() -> None:
    assert least_of(BLOCK, by.drawing(SMALL, 3), planted.UNWEIGHTED, 200_000) < BAR / 100


def test_reused_random_numbers_are_detected() -> None:
    """Where they are looked at before they decide: under block."""
    assert least_of(BLOCK, by.right(SMALL, 3), planted.REUSED, 50_000) < BAR / 100


@pytest.mark.parametrize("strategy", [REJECTION, BLOCK])
def test_one_percent_more_acceptance_is_found(strategy: int) -> None:
    """Relative: a token that should stand half of the time stands 0.505 of it."""
    assert least_of(strategy, by.right(SMALL, 3), planted.GENEROUS, 700_000) < BAR / 100


# What doesn't keep it -------------------------------------------------------------------------------------


def test_typical_and_topp_change_the_distribution_and_without_drafts_they_do_not() -> None:
    seen = set()
    for strategy, _, drafts, case in lossy():
        if drafts != "likeliest" or strategy in seen:
            continue
        seen.add(strategy)
        probs = blocks(case.toy, case.sampling, case.length)
        assert min(p_values(draw(case, verify, 20_000), probs, 8, 3)) < 1e-100, case.name
        none = replace(case, sampling=replace(case.sampling, rule=replace(case.sampling.rule, accept=NONE)))
        assert min(p_values(draw(none, verify, 100_000), probs, 8, 3)) > BAR, case.name
    assert seen == {"typical", "topp"}


def test_accepting_everything_changes_it() -> None:
    everything = replace(PLAIN, rule=replace(PLAIN.rule, accept=ALL))
    counts = draw(Case("", SMALL, everything, REJECTION, by.biased(SMALL, 2)), verify, 20_000)
    assert min(p_values(counts, blocks(SMALL, PLAIN, 3), 8, 3)) < 1e-100
