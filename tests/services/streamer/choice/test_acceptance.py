from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.messages import Run
from services.api.strategies import Verification
from services.streamer.choice.acceptance import ChoiceAcceptance, Predicted, runs_behind

GREEDY = Verification("greedy")


def ran(drafted: int, accepted: int, source: str = "ngram") -> Run:
    return Run(length=accepted + 1, drafted=drafted, accepted=accepted, source=source)


STEP = st.integers(0, 6).flatmap(lambda drafted: st.integers(0, drafted).map(lambda accepted: ran(drafted, accepted)))


def reported(runs: list[Run], longest: int = 0, *, in_order: bool = False) -> dict[str, Any]:
    counted = ChoiceAcceptance(in_order=in_order)
    counted.add(runs)
    report = counted.report(GREEDY, longest)
    assert report is not None
    return report


def test_the_report_has_the_keys_of_vllm_and_two_more() -> None:
    counted = ChoiceAcceptance()
    counted.add([ran(3, 0)] * 39)
    counted.add([ran(3, 1), *[ran(3, 3)] * 3])
    assert counted.report(Verification("topp"), 3) == {
        "mean_acceptance_length": 1 + 10 / 43,
        "draft_acceptance_rate": 10 / 129,
        "acceptance_histogram": [39, 1, 0, 3],
        "acceptance_histogram_by_draft_length": {"3": [39, 1, 0, 3]},
        "num_spec_steps": 43,
        "num_accepted_draft_tokens": 10,
        "num_draft_tokens": 129,
        "num_spec_tokens": 3,
        "verify_strategy": "topp",
        "lossless": False,
    }


def test_steps_are_told_in_order_when_that_was_asked_for() -> None:
    report = reported([ran(3, 1), ran(0, 0), ran(1, 1), ran(2, 0)], in_order=True)
    assert (report["per_step_drafted"], report["per_step_accepted"]) == ([3, 1, 2], [1, 1, 0])
    assert "per_step_drafted" not in reported([ran(3, 1)])


@given(st.lists(STEP, max_size=30), st.integers(1, 8))
def test_the_report_is_one_that_readers_of_it_find_consistent(runs: list[Run], longest: int) -> None:
    """What AIPerf demands of a record, and vLLM says of its own."""
    report = reported(runs, longest, in_order=True)
    histogram = report["acceptance_histogram"]
    assert all(type(count) is int and count >= 0 for count in histogram)
    assert len(histogram) == report["num_spec_tokens"] + 1
    assert sum(histogram) == report["num_spec_steps"]
    assert sum(j * count for j, count in enumerate(histogram)) == report["num_accepted_draft_tokens"]
    assert report["num_accepted_draft_tokens"] <= report["num_draft_tokens"]
    rows = report["acceptance_histogram_by_draft_length"]
    assert all(len(row) == int(length) + 1 and any(row) for length, row in rows.items())
    assert sum(int(length) * sum(row) for length, row in rows.items()) == report["num_draft_tokens"]
    together: Counter[int] = Counter()
    for row in rows.values():
        together.update(dict(enumerate(row)))
    assert [together[j] for j in range(len(histogram))] == histogram
    assert list(rows) == sorted(rows, key=int) and "0" not in rows
    steps = list(zip(report["per_step_drafted"], report["per_step_accepted"], strict=True))
    assert len(steps) == report["num_spec_steps"]
    assert sum(drafted for drafted, _ in steps) == report["num_draft_tokens"]
    assert all(drafted >= accepted for drafted, accepted in steps)
    assert 1 <= report["mean_acceptance_length"] <= report["num_spec_tokens"] + 1
    assert 0 <= report["draft_acceptance_rate"] <= 1


def test_steps_with_an_empty_draft_verified_nothing() -> None:
    counted = ChoiceAcceptance()
    counted.add([ran(0, 0)] * 5)
    assert (counted.steps, counted.verified) == (5, {})
    # There might have been drafts: all is zero. There might not: there is nothing to say.
    report = counted.report(GREEDY, 2)
    assert report is not None
    assert (report["num_spec_steps"], report["acceptance_histogram"], report["num_spec_tokens"]) == (0, [0, 0, 0], 2)
    assert (report["mean_acceptance_length"], report["draft_acceptance_rate"]) == (1.0, 0.0)
    assert report["acceptance_histogram_by_draft_length"] == {}
    assert counted.report(GREEDY, 0) is None


def test_a_target_that_drafts_more_than_was_allowed_is_believed() -> None:
    assert reported([ran(5, 4)], longest=2)["acceptance_histogram"] == [0, 0, 0, 0, 1, 0]


def test_a_target_cannot_accept_more_than_was_drafted() -> None:
    report = reported([Run(length=5, drafted=2, accepted=4)], in_order=True)
    assert (report["acceptance_histogram"], report["per_step_accepted"]) == ([0, 0, 1], [2])


def test_choices_are_counted_together() -> None:
    one, other = ChoiceAcceptance(in_order=True), ChoiceAcceptance(in_order=True)
    one.add([ran(2, 1)])
    other.add([ran(4, 3), ran(0, 0)])
    one.merge(other)
    assert (one.steps, one.verified) == (3, {(2, 1): 1, (4, 3): 1})
    assert one.order == [(2, 1), (4, 3)]
    assert one.given == {2: 1, 4: 1, 1: 1}


def test_the_report_says_whether_speculation_kept_the_text_or_its_distribution() -> None:
    counted = ChoiceAcceptance()
    counted.add([ran(2, 1)])
    kept = {
        (strategy, policy): (counted.report(Verification(strategy, policy), 2) or {})["lossless"]
        for strategy in ("greedy", "target_match", "rejection", "block", "typical", "topp")
        for policy in ("normal", "accept_all", "reject_all")
    }
    assert {key for key, lossless in kept.items() if not lossless} == {
        ("typical", "normal"),
        ("topp", "normal"),
        *((strategy, policy) for strategy, policy in kept if policy == "accept_all"),
    }


# Other servers' words -------------------------------------------------------------------------------------


def test_fastdeploys_words_count_the_targets_own_token_and_slots_that_were_never_drafted() -> None:
    counted = ChoiceAcceptance()
    # 100 tokens in 69 steps of up to 6: so many gave one, two, three and six.
    for accepted, steps in ((0, 56), (1, 4), (2, 6), (5, 3)):
        counted.add([ran(5, accepted)] * steps)
    assert counted.speculate_metrics(5) == {
        "accepted_tokens": 100,
        "rejected_tokens": 69 * 6 - 100,
        "accept_ratio": pytest.approx(0.31),
        "average_accept_length": 100 / 69,
        "accepted_tokens_per_head": [69, 13, 9, 3, 3, 3],
        "accept_ratio_per_head": [13 / 69, 9 / 13, 3 / 9, 1.0, 1.0],
    }


def test_fastdeploys_words_for_an_answer_without_drafts() -> None:
    counted = ChoiceAcceptance()
    empty = counted.speculate_metrics(0)
    assert (empty["accepted_tokens"], empty["accept_ratio"], empty["accepted_tokens_per_head"]) == (0, 0.0, [0])
    counted.add([ran(0, 0)] * 4)
    told = counted.speculate_metrics(2)
    assert (told["accepted_tokens"], told["rejected_tokens"], told["average_accept_length"]) == (4, 8, 1.0)
    assert (told["accepted_tokens_per_head"], told["accept_ratio_per_head"]) == ([4, 0, 0], [0.0, 0.0])


# A request's prediction -----------------------------------------------------------------------------------


def test_of_a_prediction_what_was_drafted_is_accepted_or_rejected() -> None:
    predicted = Predicted()
    predicted.add([ran(4, 3, "prediction"), ran(4, 4, "ngram"), ran(2, 0, "prediction"), ran(0, 0)], 4 + 5 + 1 + 1)
    assert predicted == Predicted(accepted=3, rejected=3)


def test_what_a_stop_string_cut_off_was_not_accepted_into_the_answer() -> None:
    predicted = Predicted()
    predicted.add([ran(4, 4, "prediction"), ran(3, 3, "prediction")], 2)
    assert predicted == Predicted(accepted=2, rejected=5)


@given(st.lists(STEP, max_size=10), st.integers(0, 80))
def test_what_was_known_before_is_left_out_of_the_runs(runs: list[Run], known: int) -> None:
    left = runs_behind(runs, known)
    whole = sum(run.length for run in runs)
    assert sum(run.length for run in left) == max(0, whole - known)
    assert all(run.length > 0 and 0 <= run.accepted <= run.drafted for run in left)
    assert sum(run.accepted for run in left) <= sum(run.accepted for run in runs)
    assert runs_behind(runs, 0) == runs
