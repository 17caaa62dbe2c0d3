"""Drafts of two engines are compared behind the same texts only."""

from __future__ import annotations

from pathlib import Path

from bench.oracles.same_drafts import Answer, compared, placed, speculative_config
from bench.replay import agreeing


def test_drafts_are_placed_behind_what_was_accepted() -> None:
    """Prompt 1 2, answer 3 4 5 6 7: two tokens of the first draft are accepted, none of the second."""
    found = placed([1, 2], [3, 4, 5, 6, 7], [[4, 5, 9], [8, 8, 8], [1, 1, 1]])
    assert found.drafts == {3: [4, 5, 9], 6: [8, 8, 8], 7: [1, 1, 1]}
    assert [agreeing(draft, found.text, at) for at, draft in found.drafts.items()] == [2, 0, 0]


def test_drafts_behind_the_end_of_an_answer_are_left_out() -> None:
    assert placed([1], [2, 3], [[3, 4], [5, 5], [6, 6]]).drafts == {2: [3, 4]}


def test_equal_drafts_miss_nothing_and_others_are_told() -> None:
    their = Answer([1], [2, 3, 4], {2: [3, 4, 5]})
    found = compared([their], [Answer([1], [2, 3, 4], {2: [3, 4]})])
    assert (found["drafts"], found["draft_tokens"], found["equal_tokens"], found["same_texts"]) == (1, 2, 2, 1)
    assert not found["missed"] and found["accepted_here"] == found["accepted_in_vllm"] == 2
    their.drafts[4] = [9, 9, 9]
    assert not compared([their], [Answer([1], [2, 3, 4], {2: [3, 4]})])["missed"], "a draft behind the end says nothing"
    found = compared([their], [Answer([1], [2, 3, 4], {2: [9, 4, 5]})])
    assert found["missed"] == ["2 of 3 draft tokens are equal", "acceptance differs"]


def test_the_token_that_ends_an_answer_makes_no_difference() -> None:
    assert compared([Answer([1], [2, 3, 0])], [Answer([1], [2, 3])])["same_texts"] == 1
    assert compared([Answer([1], [2, 3, 4, 0])], [Answer([1], [2, 3])])["same_texts"] == 0


def test_drafts_behind_another_text_are_not_compared() -> None:
    found = compared([Answer([1], [2, 3], {2: [3]})], [Answer([1], [9, 3], {2: [4]})])
    assert found["drafts"] == 0 and found["same_texts"] == 0


def test_speeds_leave_out_the_first_prompt_and_drafts_are_counted_by_kind() -> None:
    ours = [Answer([1], [2, 3], {2: [3, 3]}, seconds=seconds) for seconds in (9.0, 0.5, 0.5)]
    found = compared(ours, ours)
    assert found["tokens_per_second_here"] == found["tokens_per_second_in_vllm"] == 4.0
    assert found["draft_tokens"] == 6 and found["different_tokens"] == 1


def test_vllm_is_told_its_own_names() -> None:
    model, head = Path("/m"), Path("/h")
    assert speculative_config("mtp", model, model, 3) == {"method": "mtp", "num_speculative_tokens": 3}
    assert speculative_config("block", model, head, 5) == {
        "method": "eagle3", "num_speculative_tokens": 5, "parallel_drafting": True, "model": "/h"
    }  # fmt: skip
