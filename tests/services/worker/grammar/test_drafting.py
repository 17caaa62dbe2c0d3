"""Forced text is drafted, and drafts end where they leave the grammar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from services.api.drafter import NO_DRAFT, Draft
from services.streamer.agents.grammars import json_schema, lark, regex
from services.worker.grammar.compiled import Grammars
from services.worker.grammar.drafting import SOURCE, drafts_within
from services.worker.grammar.state import MOST_MISSED, GrammarState

pytestmark = pytest.mark.model

FORCED = "The answer is: "
ANSWER = lark(f'start: "{FORCED}" ("yes" | "no") "."')
ENDS = frozenset({2})
Ids = Callable[[str], list[int]]
Body = dict[str, Any]


def drafted(state: GrammarState, draft: Draft = NO_DRAFT, longest: int = 8) -> Draft:
    return drafts_within({1: state}, {1: draft}, {1: longest})[1]


@pytest.fixture
def answer(grammars: Grammars) -> GrammarState:
    return GrammarState(ANSWER, grammars, ENDS)


def test_what_alone_may_follow_is_drafted(answer: GrammarState, ids_of: Ids) -> None:
    forced = ids_of("The answer is:")
    assert drafted(answer) == Draft(forced, SOURCE, confidence=[1.0] * len(forced))
    assert drafted(answer, longest=2).tokens == forced[:2]
    # Nothing was consumed.
    assert drafted(answer).tokens == forced


def test_where_several_may_follow_nothing_is_drafted(grammars: Grammars) -> None:
    assert drafted(GrammarState(regex("[a-z]+"), grammars, ENDS)) == NO_DRAFT


def test_a_draft_is_cut_where_it_leaves_the_grammar(grammars: Grammars, ids_of: Ids) -> None:
    right, wrong = ids_of("some words"), ids_of("!")
    draft = Draft(right + wrong + right, "ngram", 3, confidence=[0.5] * (2 * len(right) + len(wrong)))
    cut = drafted(GrammarState(regex("[a-z ]+"), grammars, ENDS), draft)
    assert cut == draft._replace(tokens=right, confidence=[0.5] * len(right))


def test_of_two_drafts_the_longer_one_is_taken(answer: GrammarState, ids_of: Ids) -> None:
    longer, shorter = Draft(ids_of(FORCED + "yes."), "ngram"), Draft(ids_of("The answer"), "ngram")
    assert drafted(answer, longer) == longer
    assert drafted(answer, shorter).source == SOURCE


PERSON: Body = {
    "type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"},
                                     "town": {"type": "string", "maxLength": 9}},
    "required": ["name", "age", "town"], "additionalProperties": False,
}  # fmt: skip


def test_white_space_is_drafted_as_the_text_has_had_it_with_what_is_forced_behind_it(
    grammars: Grammars, ids_of: Ids
) -> None:
    state = GrammarState(json_schema(PERSON), grammars, ENDS)
    state.commit(ids_of('{"name": "Ana",'))
    # Nothing was seen behind a comma.
    assert drafted(state) == NO_DRAFT
    state.commit(ids_of(' "age":'))
    # Behind a colon there was a text: a number has other space.
    assert drafted(state) == NO_DRAFT
    state.commit(ids_of(" 7,"))
    key = ids_of(' "town": "')
    found = drafted(state)
    assert found.tokens == key and found.source == SOURCE and found.confidence[0] == 0.9
    assert drafted(state, longest=2).tokens == key[:2]
    # One of others that is as long is taken.
    other = Draft(key, "suffix")
    assert drafted(state, other) == other
    # Nothing was consumed.
    assert state.follow(key) == len(key)


def test_white_space_that_was_wrong_costs_the_text_nothing(grammars: Grammars, ids_of: Ids) -> None:
    state = GrammarState(json_schema(PERSON), grammars, ENDS)
    state.commit(ids_of('{"name": "Ana", "age": 7,'))
    assert drafted(state).tokens[:1] == ids_of(' "')
    state.commit(ids_of('"'))
    state.commit(ids_of('town":"Bonn"'))
    assert not state.problem and state.follow(ids_of("}")) == 1


def test_trees_and_drafts_with_probabilities_stay_as_they_are(answer: GrammarState, ids_of: Ids) -> None:
    """Whether one with probabilities is cut must not depend on what was drawn."""
    wrong = ids_of("wrong words")
    for draft in (Draft(wrong, parents=[-1] * len(wrong)), Draft(wrong, probs=np.ones((len(wrong), 4)))):
        assert drafted(answer, draft) is draft


def test_a_model_that_writes_in_other_tokens_is_soon_left_alone(grammars: Grammars, ids_of: Ids) -> None:
    word = "misunderstanding" * 3
    spelled = GrammarState(lark(f'start: "{word}"'), grammars, ENDS)
    misses = 0
    for letter in word:
        if drafted(spelled) == NO_DRAFT:
            break
        misses = 0 if drafted(spelled).tokens[0] in ids_of(letter) else misses + 1
        spelled.commit(ids_of(letter))
    assert misses == MOST_MISSED and not spelled.problem


def test_behind_its_end_a_text_has_no_draft(answer: GrammarState, ids_of: Ids) -> None:
    answer.commit([*ids_of(FORCED + "no."), 2])
    assert drafted(answer, Draft([5])) == NO_DRAFT


def test_a_fault_costs_the_draft_alone(
    answer: GrammarState, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Panic(BaseException):
        """As the library's are."""

    def fail(state: GrammarState) -> list[int]:
        raise Panic

    monkeypatch.setattr(GrammarState, "forced", fail)
    assert drafted(answer) == NO_DRAFT
    assert "can't draft" in caplog.text and not answer.problem
