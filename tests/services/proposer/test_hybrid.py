"""Two methods in one: behind each other, or the better one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest
from asking import drafters, guess, index, say, told, view

from services.api.drafter import MAX_DRAFT_TOKENS, Committed, Draft, DraftRequest, Needs
from services.proposer.hybrid import HybridDrafter, expected_tokens, joined
from services.proposer.ngram import NgramDrafter
from services.proposer.plain.guess import DraftRule
from services.proposer.prediction import PredictionDrafter
from services.proposer.suffix import SuffixDrafter

pytestmark = pytest.mark.usefixtures("compiled")

TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]


def hybrid(rule: str, **more: float) -> HybridDrafter:
    held = index()
    return HybridDrafter(SuffixDrafter(held, DraftRule(**more)), NgramDrafter(held), rule)


def test_the_second_goes_on_where_the_first_ends() -> None:
    assert guess(SuffixDrafter(index(), DraftRule()), view(1, TEXT)).tokens == [3, 4]
    draft = guess(hybrid("continue"), view(1, TEXT), 6)
    assert told(draft) == ([3, 4, 5, 6, 7, 8], "suffix", 2) and len(draft.confidence) == 6


def test_where_the_first_has_nothing_the_second_drafts() -> None:
    assert told(guess(hybrid("continue", least=0.9), view(1, TEXT), 3)) == ([3, 4, 5], "ngram", 2)


def test_no_draft_is_longer_than_its_budget() -> None:
    text = [*range(200), *range(30)]
    for budget, length in ((0, 0), (1, 1), (9, 9), (10**6, MAX_DRAFT_TOKENS)):
        assert len(guess(hybrid("continue"), view(1, text), budget).tokens) == length


def test_the_better_one_is_expected_to_bring_more() -> None:
    assert expected_tokens(Draft([1, 2], confidence=[0.5, 0.5])) == 0.75
    assert told(guess(hybrid("better"), view(1, TEXT), 5)) == ([3, 4, 5, 6, 7], "ngram", 2)
    assert told(guess(hybrid("better", factor=4.0), view(1, TEXT), 5)) == ([3, 4, 5, 6, 7], "suffix", 2)


def test_what_is_ahead_is_ahead_of_both() -> None:
    draft = guess(hybrid("continue"), view(1, TEXT), 4, [3, 4, 5])
    assert draft.tokens == [6, 7, 8, 9]


def test_a_prediction_goes_on_behind_an_n_gram() -> None:
    held = index()
    drafter = HybridDrafter(NgramDrafter(held), PredictionDrafter(held), "continue")
    one = view(1, [5], prompt=1, prediction=[1, 2, 3, 4])
    assert guess(drafter, one, 3).tokens == [1, 2, 3]
    assert say(drafter, one, [1, 2]).tokens == [3, 4]


def test_joined_drafts_come_from_the_first_unless_it_is_empty() -> None:
    first, rest = Draft([1], "a", 3, confidence=[0.5]), Draft([2], "b", 4, confidence=[0.4])
    assert joined(first, rest) == Draft([1, 2], "a", 3, confidence=[0.5, 0.4])
    assert joined(Draft(), rest) is rest and joined(first, Draft()) is first


def test_which_two_is_set() -> None:
    made = drafters(hybrid_first="prediction", hybrid_then="suffix")
    one = view(1, TEXT, prompt=len(TEXT), prediction=[77])
    assert told(guess(made["hybrid"], one, 4)) == ([77], "prediction", 0)


class Fixed:
    """Always the same draft, cut to the budget."""

    name: ClassVar[str] = "fixed"
    needs: ClassVar[Needs] = Needs.FEATURES
    gives_probs: ClassVar[bool] = True

    def __init__(self, tokens: list[int], probs: bool) -> None:
        self.tokens, self.probs = tokens, probs
        self.requests: list[DraftRequest] = []
        self.committed: list[Committed] = []
        self.forgotten: list[int] = []

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.requests += requests
        return [self._draft(self.tokens[: request.budget]) for request in requests]

    def _draft(self, tokens: list[int]) -> Draft:
        return Draft(tokens, "fixed", probs=np.eye(10, dtype=np.float32)[tokens] if self.probs else None)

    def commit(self, results: Sequence[Committed]) -> None:
        self.committed += results

    def forget(self, text_ids: Sequence[int]) -> None:
        self.forgotten += text_ids


def test_any_two_drafters_can_be_joined_and_both_hear_of_what_was_committed() -> None:
    first, then = Fixed([1, 2], probs=True), Fixed([3, 4, 5], probs=True)
    both = HybridDrafter(first, then, "continue")
    assert both.needs is Needs.FEATURES and both.gives_probs
    [draft] = both.draft([DraftRequest(view(1, [9]), 4, ahead=[8])])
    assert draft.tokens == [1, 2, 3, 4] and draft.probs.argmax(1).tolist() == [1, 2, 3, 4]
    [asked] = then.requests
    assert (asked.budget, asked.ahead) == (2, [8, 1, 2])
    both.commit([result := Committed(1, 1, [1, 2])])
    both.forget([1])
    assert first.committed == then.committed == [result] and first.forgotten == then.forgotten == [1]


def test_a_draft_with_probabilities_is_not_joined_to_one_without() -> None:
    for first_has, then_has in ((True, False), (False, True)):
        [draft] = HybridDrafter(Fixed([1, 2], first_has), Fixed([3], then_has), "continue").draft(
            [DraftRequest(view(1, [9]), 4)]
        )
        assert draft.tokens == [1, 2] and (draft.probs is not None) == first_has


def test_a_draft_without_confidence_is_better_than_none() -> None:
    [draft] = HybridDrafter(Fixed([], False), Fixed([3], False), "better").draft([DraftRequest(view(1, [9]), 4)])
    assert draft.tokens == [3]
