"""How the proposer benchmark counts; its text and its bars need a model's tokenizer and a quiet machine."""

from __future__ import annotations

from array import array

import pytest

from bench.proposer import PROMPT, Store, agreeing, missed, proposers, replayed
from services.proposer.naive import NaiveProposer
from services.proposer.suffix_store import compiling


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    compiling.start().join()


def test_a_draft_agrees_as_far_as_the_text_goes_its_way() -> None:
    text = array("i", [1, 2, 3, 4])
    assert agreeing([2, 3, 9], text, 1) == 2
    assert agreeing([9], text, 1) == 0
    assert agreeing([4, 5, 6], text, 3) == 1
    assert agreeing([], text, 1) == 0


def test_without_drafts_every_token_behind_the_prompt_is_a_step() -> None:
    texts = [array("i", range(PROMPT + 10)), array("i", range(PROMPT + 30))]
    seen = replayed(NaiveProposer(), texts, batch=2, longest=8)
    assert (seen["accepted_per_step"], seen["drafted_per_step"], seen["steps"]) == (0, 0, 40)


def test_what_was_learned_is_drafted_by_the_one_that_shares_and_by_nobody_else() -> None:
    text = array("i", range(4000))
    seen = {name: replayed(each, [text], batch=4, longest=8) for name, each in proposers([text]).items()}
    assert seen["suffix, own and learned text"]["accepted_per_step"] > 7.5
    assert seen["suffix, own and learned text"]["accepted_of_drafted"] == 1.0
    assert {seen[name]["drafted_per_step"] for name in seen if "learned" not in name} == {0.0}


def test_the_store_tells_what_it_cost_and_a_bar_that_is_missed_is_named() -> None:
    store = Store([array("i", [k % 700 for k in range(5000)])])
    assert store.automaton.tokens == 5000 and store.appended["wall_ns"] > 0
    seen = store.replay([array("i", range(600))] * 3, longest=8, steps=5)
    assert 0 < seen["p50_us"] <= seen["p99_us"] and seen["batch"] == 3
    good = {"append": {"wall_ns": 1.0}, "draft": {"p50_us": 1.0, "p99_us": 1.0}, "bytes_per_token": 1.0}
    assert missed(good) == []
    assert missed({**good, "bytes_per_token": 141.0}) == ["bytes a token: 141.0, the bar is 140"]
