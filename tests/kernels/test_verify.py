"""A draft stands while it is what would have been chosen without it."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.sample.reference import History, Rule, choose
from kernels.verify.reference import NOT_FINITE, Question, verify

V = 700


class Model:
    """Logits that depend on the text, for any text."""

    def __init__(self, sharp: float = 3.0) -> None:
        self._sharp = sharp

    def row(self, text: list[int]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash(tuple(text[-3:])) % 2**31)
        # Rounded to bf16, so that ties happen.
        return (torch.randn(V, generator=generator) * self._sharp).bfloat16().float()

    def rows(self, text: list[int], draft: list[int]) -> torch.Tensor:
        return torch.stack([self.row(text + draft[:i]) for i in range(len(draft) + 1)])


def naive(model: Model, prompt: list[int], rule: Rule, count: int) -> list[int]:
    text, history = list(prompt), History(tuple(prompt))
    for _ in range(count):
        token = choose(model.row(text), rule, history, len(text))
        text.append(token)
        history.add(token)
    return text[len(prompt) :]


RULES: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.8, "seed": 4, "top_k": 20, "top_p": 0.9},
    {"repetition_penalty": 1.5},
    {"temperature": 0.7, "seed": 5, "presence_penalty": 1.5, "frequency_penalty": 0.8},
    {"temperature": 1.0, "seed": 6, "min_tokens": 30, "held_back": (1, 2, 3)},
    {"bias": {7: 3.0, 8: -5.0}, "logprobs": 2},
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_any_draft_gives_the_text_of_naive_decoding(rule: dict[str, Any]) -> None:
    """Penalties and min_tokens among them: they count per position, not per step."""
    model, one, chance = Model(), Rule(**rule), random.Random(1)
    prompt = [5, 6, 7]
    expected = naive(model, prompt, one, 60)
    text, history = list(prompt), History(tuple(prompt))
    steps = 0
    while len(text) < len(prompt) + 60:
        ahead = expected[len(text) - len(prompt) :][: chance.randrange(7)]
        draft = [token if chance.random() < 0.8 else chance.randrange(V) for token in ahead]
        question = Question(draft, len(text), one, history)
        [answer] = verify(model.rows(text, draft), [question])
        assert answer.tokens[:-1] == draft[: answer.accepted] and len(answer.tokens) == answer.accepted + 1
        if one.logprobs >= 0:
            assert answer.logprobs is not None and len(answer.logprobs) == len(answer.tokens)
        for token in answer.tokens:
            text.append(token)
            history.add(token)
        steps += 1
    assert text[len(prompt) :][:60] == expected
    assert steps < 40


def test_what_a_question_is_answered_does_not_depend_on_its_neighbours() -> None:
    model, chance = Model(), random.Random(2)
    questions, rows = [], []
    for index in range(40):
        text = [chance.randrange(V) for _ in range(5)]
        rule = Rule(**RULES[index % len(RULES)])
        draft = naive(model, text, rule, chance.randrange(5))
        questions.append(Question(draft, len(text), rule, History(tuple(text))))
        rows.append(model.rows(text, draft))
    together = verify(torch.cat(rows), questions)
    assert together == [verify(row, [question])[0] for row, question in zip(rows, questions, strict=True)]
    assert any(answer.accepted for answer in together)


def test_an_accepted_token_counts_for_the_penalties_of_the_next_row() -> None:
    rows = torch.zeros(3, V)
    rows[:, 9], rows[:, 4] = 2.0, 1.5
    question = Question([9, 9], 3, Rule(presence_penalty=1.0), History())
    [answer] = verify(rows, [question])
    assert (answer.tokens, answer.accepted) == ([9, 4], 1)
    assert question.history == History(), "what was asked is left as it was"


def test_ids_held_back_are_free_from_the_position_on_that_reaches_min_tokens() -> None:
    rows = torch.zeros(4, V)
    rows[:, 2], rows[:, 6] = 5.0, 3.0
    rule = Rule(min_tokens=3, held_back=(2,))
    [answer] = verify(rows, [Question([6, 6, 6], 9, rule, History(generated=1))])
    assert (answer.tokens, answer.accepted) == ([6, 6, 2], 2)


def test_a_wrong_first_token_accepts_nothing_and_gives_the_recovered_one() -> None:
    rows = torch.zeros(3, V)
    rows[0, 8] = rows[1, 9] = 1.0
    [answer] = verify(rows, [Question([7, 9], 0, Rule(), History())])
    assert (answer.tokens, answer.accepted) == ([8], 0)


def test_accept_policies_take_all_and_none() -> None:
    rows = torch.zeros(3, V)
    rows[0, 8] = rows[1, 9] = rows[2, 10] = 1.0
    for rule in (Rule(), Rule(temperature=1e-3)):
        question = Question([8, 7], 0, rule, History())
        assert verify(rows, [replace(question, accept="all")])[0].tokens == [8, 7, 10]
        assert verify(rows, [replace(question, accept="none")])[0].tokens == [8]


@pytest.mark.parametrize(
    "rule", [Rule(), Rule(temperature=1.0), Rule(logprobs=1)], ids=["plain", "sampled", "logprobs"]
)
def test_rows_that_are_not_finite_fail_their_sequence_alone(rule: Rule) -> None:
    rows = torch.zeros(4, V)
    rows[0, 8] = rows[1, 9] = rows[2, 10] = 50.0
    rows[1, 500] = math.nan
    good = Question([], 0, rule, History())
    answers = verify(rows, [good, Question([], 0, rule, History()), Question([10], 0, rule, History())])
    assert answers[0].tokens == [8] and not answers[0].failure
    assert answers[2].tokens[0] == 10 and answers[2].accepted == 1
    assert (answers[1].tokens, answers[1].failure) == ([], NOT_FINITE)


def test_a_row_behind_the_first_mismatch_is_not_looked_at() -> None:
    rows = torch.zeros(2, V)
    rows[0, 8] = 50.0
    rows[1] = math.nan
    for rule in (Rule(), Rule(temperature=1.0)):
        [answer] = verify(rows, [Question([7], 0, rule, History())])
        assert answer.tokens == [8]


def test_seeds_belong_to_their_requests() -> None:
    rows = torch.zeros(6, V)
    questions = [Question([], 5, Rule(temperature=1.0, seed=seed), History()) for seed in (1, 2, 3, 1, 2, 3)]
    tokens = [answer.tokens[0] for answer in verify(rows, questions)]
    assert tokens[:3] == tokens[3:] and len(set(tokens)) == 3


def test_greedy_rows_of_a_whole_vocabulary_cost_little() -> None:
    """The bar is 5 % of a step of 6 ms for eight rows; here ten times that, for a busy machine."""
    rows = torch.randn(8, 49152)
    question = [Question([1] * 7, 5, Rule(), History())]
    best = math.inf
    for _ in range(20):
        begin = time.perf_counter()
        verify(rows, question)
        best = min(best, time.perf_counter() - begin)
    assert best < 0.003
