"""What is drawn: every strategy that claims to keep the distribution, with chains and trees, certain drafts and drafts
with probabilities, all sampling parameters, and drafters of every mind; and those strategies that don't claim it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kernels.verify.questions import BLOCK, MATCH, REJECTION, TOPP, TYPICAL, Rule
from tests.laws.distribution import drafters as by
from tests.laws.distribution.drafters import Drafter
from tests.laws.distribution.draws import Case
from tests.laws.distribution.toy import Sampling, Toy

LOSSLESS = {"target_match": MATCH, "rejection": REJECTION, "block": BLOCK}
SMALL = Toy()
WIDE = Toy(vocab_size=32, seed=5, sharpness=2.0)
TIED = Toy(seed=6, ties=True)
PLAIN = Sampling(Rule(temperature=1.0))

PARAMETERS = {
    "cold": Sampling(Rule(temperature=0.5)),
    "hot": Sampling(Rule(temperature=2.0)),
    "top_k": Sampling(Rule(temperature=1.0, top_k=3)),
    "top_p": Sampling(Rule(temperature=1.0, top_p=0.8)),
    "min_p": Sampling(Rule(temperature=1.0, min_p=0.15)),
    "all filters": Sampling(Rule(temperature=1.3, top_k=6, top_p=0.9, min_p=0.05)),
    "penalties": Sampling(
        Rule(temperature=1.0, repetition_penalty=1.4, presence_penalty=0.4, frequency_penalty=0.3), {2: 0.7, 5: -1.0}
    ),
    "a mask": Sampling(Rule(temperature=1.0, top_p=0.9), allowed=(0, 2, 3, 5, 6)),
}


def certain(toy: Toy) -> dict[str, Drafter]:
    return {
        "no drafts": by.nothing(),
        "always right": by.right(toy, 3),
        "always wrong": by.wrong(toy, 2),
        "biased": by.biased(toy, 3),
        "copies": by.copying(3),
        "out of the vocabulary": by.strange(by.biased(toy, 3)),
        "of every length": by.stopping(by.biased(toy, 4)),
        "trees": by.tree(toy),
        "chains and trees": by.either(by.right(toy, 3), by.tree(toy)),
    }


def with_probabilities(toy: Toy) -> dict[str, Drafter]:
    return {
        "draws": by.drawing(toy, 3),
        "draws far off": by.drawing(toy, 3, own=1.0),
        "draws as the target does": by.drawing(toy, 3, own=0.0),
        "draws of a few": by.drawing(toy, 3, zeros=True),
        "draws, half of them certain": by.drawing(toy, 4, dense=0.5),
        "draws of every length": by.stopping(by.drawing(toy, 4)),
    }


def lossless() -> Iterator[Case]:
    for name, strategy in LOSSLESS.items():
        drafts = certain(SMALL) | (with_probabilities(SMALL) if strategy != MATCH else {})
        for kind, drafter in drafts.items():
            yield Case(f"{name}, {kind}", SMALL, PLAIN, strategy, drafter)
        for parameter, sampling in PARAMETERS.items():
            # What probabilities are for can't be told from what they are not for: both kinds under every parameter.
            yield Case(f"{name}, {parameter}, biased", SMALL, sampling, strategy, by.biased(SMALL, 3))
            if strategy != MATCH:
                yield Case(f"{name}, {parameter}, draws", SMALL, sampling, strategy, by.drawing(SMALL, 3))
        yield Case(f"{name}, penalties, trees", SMALL, PARAMETERS["penalties"], strategy, by.tree(SMALL))
        yield Case(f"{name}, ties, top_k", TIED, PARAMETERS["top_k"], strategy, by.biased(TIED, 3))
        yield Case(f"{name}, 32 ids", WIDE, PLAIN, strategy, by.drawing(WIDE, 3), length=2)
        # Where a number of a block's were used again by a tree two places on.
        yield Case(f"{name}, four tokens", SMALL, PLAIN, strategy, by.either(by.right(SMALL, 4), by.tree(SMALL)), 4)
    greedy = Sampling(Rule(temperature=0.0))
    yield Case("greedy, biased", SMALL, greedy, MATCH, by.biased(SMALL, 3))
    yield Case("greedy, trees", SMALL, replace(greedy, bias={3: 1.0}), BLOCK, by.tree(SMALL))


def lossy() -> Iterator[tuple[str, str, str, Case]]:
    """(strategy, parameters, drafter, case)"""
    drafters = {
        "likeliest": by.right(SMALL, 3),
        "biased": by.biased(SMALL, 3),
        "draws": by.drawing(SMALL, 3),
        "unlikeliest": by.wrong(SMALL, 3),
    }
    rules = {
        ("typical", "epsilon 0.09, delta 0.3"): (TYPICAL, Rule(temperature=1.0)),
        ("typical", "epsilon 0.3, delta 0.6"): (
            TYPICAL,
            Rule(temperature=1.0, typical_epsilon=0.3, typical_delta=0.6),
        ),
        ("typical", "epsilon 0.09, delta 0.3, top_p 0.8"): (TYPICAL, Rule(temperature=1.0, top_p=0.8)),
        ("topp", "max_candidate_len 5, top_p 1"): (TOPP, Rule(temperature=1.0, verify_window=2)),
        ("topp", "max_candidate_len 5, top_p 0.8"): (TOPP, Rule(temperature=1.0, top_p=0.8)),
        ("topp", "max_candidate_len 2, top_p 0.8"): (TOPP, Rule(temperature=1.0, top_p=0.8, max_candidate_len=2)),
        ("topp", "max_candidate_len 1, verify_window 2"): (TOPP, Rule(temperature=1.0, max_candidate_len=1)),
    }
    for (strategy, parameters), (number, rule) in rules.items():
        for kind, drafter in drafters.items():
            case = Case(f"{strategy}, {parameters}, {kind}", SMALL, Sampling(rule), number, drafter, lossless=False)
            yield strategy, parameters, kind, case
