"""Two methods in one: behind each other, or the better one."""

from __future__ import annotations

import pytest
from asking import guess, knowledge, say, told, view

from services.api.settings import Settings
from services.proposer.draft import MAX_DRAFT_TOKENS, Draft
from services.proposer.hybrid import HybridProposer, expected_tokens, joined
from services.proposer.knowledge import Rule
from services.proposer.ngram import NgramProposer
from services.proposer.prediction import PredictionProposer
from services.proposer.registry import make_proposers
from services.proposer.suffix import SuffixProposer

pytestmark = pytest.mark.usefixtures("compiled")

TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]


def hybrid(rule: str, **more: float) -> HybridProposer:
    held = knowledge()
    return HybridProposer(SuffixProposer(held, Rule(**more)), NgramProposer(held), rule)


def test_the_second_goes_on_where_the_first_ends() -> None:
    assert guess(SuffixProposer(knowledge(), Rule()), view(1, TEXT)).tokens == [3, 4]
    draft = guess(hybrid("continue"), view(1, TEXT), 6)
    assert told(draft) == ([3, 4, 5, 6, 7, 8], "suffix", 2) and len(draft.chances) == 6


def test_where_the_first_has_nothing_the_second_drafts() -> None:
    assert told(guess(hybrid("continue", least=0.9), view(1, TEXT), 3)) == ([3, 4, 5], "ngram", 2)


def test_no_draft_is_longer_than_its_budget() -> None:
    text = [*range(200), *range(30)]
    for budget, length in ((0, 0), (1, 1), (9, 9), (10**6, MAX_DRAFT_TOKENS)):
        assert len(guess(hybrid("continue"), view(1, text), budget).tokens) == length


def test_the_better_one_is_expected_to_bring_more() -> None:
    assert expected_tokens(Draft([1, 2], chances=[0.5, 0.5])) == 0.75
    assert told(guess(hybrid("better"), view(1, TEXT), 5)) == ([3, 4, 5, 6, 7], "ngram", 2)
    assert told(guess(hybrid("better", factor=4.0), view(1, TEXT), 5)) == ([3, 4, 5, 6, 7], "suffix", 2)


def test_what_is_ahead_is_ahead_of_both() -> None:
    draft = guess(hybrid("continue"), view(1, TEXT), 4, [3, 4, 5])
    assert draft.tokens == [6, 7, 8, 9]


def test_a_prediction_goes_on_behind_an_n_gram() -> None:
    held = knowledge()
    proposer = HybridProposer(NgramProposer(held), PredictionProposer(held), "continue")
    one = view(1, [5], prompt=1, prediction=[1, 2, 3, 4])
    assert guess(proposer, one, 3).tokens == [1, 2, 3]
    assert say(proposer, one, [1, 2]).tokens == [3, 4]


def test_joined_drafts_come_from_the_first_unless_it_is_empty() -> None:
    first, rest = Draft([1], "a", 3, chances=[0.5]), Draft([2], "b", 4, chances=[0.4])
    assert joined(first, rest) == Draft([1, 2], "a", 3, chances=[0.5, 0.4])
    assert joined(Draft(), rest) is rest and joined(first, Draft()) is first


def test_which_two_is_set() -> None:
    proposers = make_proposers(Settings.for_tests(hybrid_first="prediction", hybrid_then="suffix"))
    one = view(1, TEXT, prompt=len(TEXT), prediction=[77])
    assert told(guess(proposers["hybrid"], one, 4)) == ([77], "prediction", 0)
