from __future__ import annotations

from services.messages import Run
from services.streamer.acceptance import Acceptance
from services.target.verify.policy import Verification


def test_the_report_has_the_numbers_other_tools_check_against_each_other() -> None:
    counted = Acceptance()
    counted.add([Run(length=1, drafted=3, accepted=0)] * 39)
    counted.add([Run(length=2, drafted=3, accepted=1), *[Run(length=4, drafted=3, accepted=3)] * 3])
    assert counted.report(Verification("topp")) == {
        "mean_acceptance_length": 1 + 10 / 43,
        "draft_acceptance_rate": 10 / 129,
        "acceptance_histogram": [39, 1, 0, 3],
        "num_spec_steps": 43,
        "num_accepted_draft_tokens": 10,
        "num_draft_tokens": 129,
        "num_spec_tokens": 3,
        "verify_strategy": "topp",
        "lossless": False,
    }


def test_steps_with_an_empty_draft_verified_nothing() -> None:
    counted = Acceptance()
    counted.add([Run(length=1, drafted=0, accepted=0)] * 5)
    assert counted.report(Verification("greedy")) is None
    assert (counted.steps, counted.empty) == (5, 5)


def test_choices_are_counted_together() -> None:
    one, other = Acceptance(), Acceptance()
    one.add([Run(length=2, drafted=2, accepted=1)])
    other.add([Run(length=4, drafted=4, accepted=3), Run(length=1, drafted=0, accepted=0)])
    one.merge(other)
    assert (one.steps, one.empty, one.drafted, one.accepted, one.longest) == (3, 1, 6, 4, 4)
    assert one.histogram == [0, 1, 0, 1]


def test_the_report_says_whether_speculation_kept_the_text_or_its_distribution() -> None:
    counted = Acceptance()
    counted.add([Run(length=2, drafted=2, accepted=1)])
    kept = {
        (strategy, policy): (counted.report(Verification(strategy, policy)) or {})["lossless"]
        for strategy in ("greedy", "target_match", "rejection", "block", "typical", "topp")
        for policy in ("normal", "accept_all", "reject_all")
    }
    assert {key for key, lossless in kept.items() if not lossless} == {
        ("typical", "normal"),
        ("topp", "normal"),
        *((strategy, policy) for strategy, policy in kept if policy == "accept_all"),
    }
