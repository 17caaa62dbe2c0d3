"""How tokens a step and acceptance are counted, and what counts as a text that differs."""

from __future__ import annotations

from typing import Any

import pytest

from bench.acceptance_figures import by_method, cell, curve_lines, lines, missed
from bench.streams import Heard

HISTOGRAM = {"acceptance_histogram_by_draft_length": {"2": [1, 1, 2], "4": [0, 0, 0, 0, 1]}}


def heard(text: str = "t", steps: int = 6, accepted: int = 9, drafted: int = 12, **drafts: Any) -> Heard:
    """An answer of `steps` + `accepted` tokens; a second from the first to the last."""
    tokens = steps + accepted
    return Heard(text, tokens, steps, tokens, drafted, accepted, 0.0, 0.5, 1.5, {"verify_strategy": "greedy"} | drafts)


NAIVE = heard(steps=15, accepted=0, drafted=0)._replace(drafts={})


def test_tokens_a_step_leave_the_prompts_step_out() -> None:
    """Six steps: one gave the prompt's token, five gave nine draft tokens and one of their own each."""
    found = cell([heard(**HISTOGRAM), heard(**HISTOGRAM)], [NAIVE, NAIVE])
    assert (found["prompts"], found["tokens"], found["steps"]) == (2, 30, 10)
    assert found["tokens_per_step"] == 2.8 and found["accepted_of_drafted"] == 0.75
    assert found["decode_tokens_per_second"] == 14.0 and found["texts_differ"] == 0
    # Five drafts reached two positions, one of them four.
    assert found["accepted_by_position"] == [0.8, 0.6, 1.0, 1.0]


def test_without_drafts_a_step_gives_a_token() -> None:
    found = cell([NAIVE], [NAIVE])
    assert found["tokens_per_step"] == 1.0 and found["accepted_by_position"] == []
    assert cell([heard(steps=1, accepted=0, drafted=0)], [NAIVE])["tokens_per_step"] == 1.0


@pytest.mark.parametrize(("strategy", "differ"), [("greedy", 1), ("target_match", 1), ("rejection", 0), ("block", 0)])
def test_texts_are_compared_where_the_strategy_keeps_them(strategy: str, differ: int) -> None:
    found = cell([heard("other", verify_strategy=strategy)], [NAIVE])
    assert found["texts_differ"] == found["texts_compared"] == differ
    assert cell([heard(verify_strategy=strategy)], [NAIVE])["texts_differ"] == 0


def test_texts_that_differ_are_a_miss_and_all_kinds_are_counted_together() -> None:
    seen = by_method(
        {
            "auto": {"chat": [heard("other")], "edit": [heard(accepted=19, drafted=20)]},
            "naive": {"chat": [NAIVE], "edit": [NAIVE]},
        }
    )
    assert seen["auto"]["chat"]["texts_differ"] == seen["auto"]["all"]["texts_differ"] == 1
    assert seen["naive"]["all"]["texts_differ"] == 0 == seen["auto"]["edit"]["texts_differ"]
    assert seen["auto"]["all"]["tokens_per_step"] == 1 + 28 / 10
    assert missed({"0": seen}) == ["temperature 0: 1 texts of auto differ"]
    assert missed({"0": {"naive": seen["naive"]}}) == []


def test_without_naive_the_first_methods_texts_count() -> None:
    seen = by_method({"auto": {"chat": [heard("a")]}, "suffix:4": {"chat": [heard("b")]}})
    assert [seen[label]["all"]["texts_differ"] for label in seen] == [0, 1]


def test_tables_have_a_line_for_each_method_and_a_column_for_each_kind() -> None:
    seen = by_method({"naive": {"chat": [NAIVE]}, "auto": {"chat": [heard(**HISTOGRAM)]}})
    told = [line.split() for line in lines("temperature 0", seen)]
    assert ["temperature", "0,", "tokens", "a", "step", "chat", "all"] in told
    assert ["naive", "1.00", "1.00"] in told and ["auto", "2.80", "2.80"] in told and ["auto", "14", "14"] in told
    assert told[-2:] == [
        ["temperature", "0,", "accepted", "by", "position", "1", "2", "3", "4"],
        ["auto", "0.80", "0.60", "1.00", "1.00"],
    ]


def test_tables_of_a_run_without_drafts_have_no_positions() -> None:
    assert lines("temperature 0", by_method({"naive": {"chat": [NAIVE]}}))[-1].split() == ["naive", "0", "0"]


def test_a_curve_has_a_line_for_each_head() -> None:
    point = {"head": "eagle3 x", "tokens": 5000, "length": 4, "measured": {"chat": 1.25, "all": 1.5}}
    told = curve_lines([point, point | {"head": "eagle3 y", "tokens": 10_000, "tokens_per_step": 1.4}])
    assert [line.split() for line in told] == [
        ["tokens", "a", "step,", "drafts", "of", "4", "tokens", "its", "own", "chat", "all"],
        ["eagle3", "x", "5000", "-", "1.25", "1.50"],
        ["eagle3", "y", "10000", "1.40", "1.25", "1.50"],
    ]
    assert curve_lines([]) == []
