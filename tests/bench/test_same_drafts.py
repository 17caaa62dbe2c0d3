"""Drafts of two engines are compared behind the same texts only."""

from __future__ import annotations

import json
from pathlib import Path

from bench.oracles.same_drafts import DraftedAnswer, compared, own_length, placed
from bench.replay import agreeing


def test_drafts_are_placed_behind_what_was_accepted() -> None:
    """Prompt 1 2, answer 3 4 5 6 7: two tokens of the first draft are accepted, none of the second."""
    found = placed([1, 2], [3, 4, 5, 6, 7], [[4, 5, 9], [8, 8, 8], [1, 1, 1]])
    assert found.drafts == {3: [4, 5, 9], 6: [8, 8, 8], 7: [1, 1, 1]}
    assert [agreeing(draft, found.text, at) for at, draft in found.drafts.items()] == [2, 0, 0]


def test_drafts_behind_the_end_of_an_answer_are_left_out() -> None:
    assert placed([1], [2, 3], [[3, 4], [5, 5], [6, 6]]).drafts == {2: [3, 4]}


def test_equal_drafts_miss_nothing_and_others_are_told() -> None:
    their = DraftedAnswer([1], [2, 3, 4], {2: [3, 4, 5]})
    found = compared([their], [DraftedAnswer([1], [2, 3, 4], {2: [3, 4]})])
    assert (found["drafts"], found["draft_tokens"], found["equal_tokens"], found["same_texts"]) == (1, 2, 2, 1)
    assert not found["missed"] and found["accepted_here"] == found["accepted_in_vllm"] == 2
    their.drafts[4] = [9, 9, 9]
    behind = DraftedAnswer([1], [2, 3, 4], {2: [3, 4]})
    assert not compared([their], [behind])["missed"], "a draft behind the end says nothing"
    found = compared([their], [DraftedAnswer([1], [2, 3, 4], {2: [9, 4, 5]})])
    assert found["missed"] == ["2 of 3 draft tokens are equal", "acceptance differs"]


def test_drafts_behind_another_text_are_not_compared() -> None:
    found = compared([DraftedAnswer([1], [2, 3], {2: [3]})], [DraftedAnswer([1], [9, 3], {2: [4]})])
    assert found["drafts"] == 0 and found["same_texts"] == 0


def test_a_draft_is_as_long_as_the_heads_block(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"block_size": 8}))
    assert own_length("dflash", tmp_path) == 7
    (tmp_path / "config.json").write_text("{}")
    assert own_length("eagle3", tmp_path) > 1
