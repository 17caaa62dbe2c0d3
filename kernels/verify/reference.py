"""What a step's logits say about its drafts: plain torch, one sequence after the other, the truth.

Each row is chosen as if the sequence were alone and its draft absent, and a drafted token stands while it is
the one that was chosen. So a draft can't change the text, and every sampling parameter keeps its meaning:
what an accepted token adds to penalties or min_tokens is there for the next row. Rows after the first
mismatch are never looked at: a step costs what it emits, whatever was drafted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.sample.reference import (
    History,
    NotFinite,
    Rule,
    choose,
    logprobs_of,
    lowest_argmaxes,
)

MATCH, ALL, NONE = "match", "all", "none"
NOT_FINITE = "the model gave logits that are not finite"


@dataclass(slots=True)
class Question:
    """One sequence's rows of the logits: len(draft) + 1 of them. `position` is the absolute index, in its
    sequence, of the token that the first row chooses. `accept` other than "match" is for debugging."""

    draft: Sequence[int]
    position: int
    rule: Rule
    history: History
    accept: str = MATCH


@dataclass(slots=True)
class Answer:
    """`tokens`: the accepted part of the draft, then one token of the target's own. None of them: refused."""

    tokens: list[int]
    accepted: int = 0
    logprobs: list[tuple[float, list[tuple[int, float]]]] | None = None
    failure: str = ""


def verify(logits: torch.Tensor, questions: Sequence[Question]) -> list[Answer]:
    """Answers in order. `logits` [R, V]: the rows of the first question, then those of the second, ..."""
    sizes = [len(question.draft) + 1 for question in questions]
    assert sum(sizes) == logits.shape[0], "one row for each drafted token and one more"
    plain = [_is_plain(question) for question in questions]
    every = lowest_argmaxes(logits) if all(plain) else None
    answers, begin = [], 0
    for question, size, is_plain in zip(questions, sizes, plain, strict=True):
        end = begin + size
        if is_plain:
            tops, ids = every or lowest_argmaxes(logits[begin:end])
            span = slice(begin, end) if every else slice(None)
            answers.append(_match_plain(question, tops[span], ids[span]))
        else:
            answers.append(_match_one_by_one(question, logits[begin:end]))
        begin = end
    return answers


def _is_plain(question: Question) -> bool:
    """Whether its tokens are the arg-max of the logits as they are, so that rows can be judged together."""
    rule = question.rule
    return (
        rule.greedy
        and rule.logprobs < 0
        and not rule.bias
        and not rule.penalised
        and not (rule.held_back and question.history.generated < rule.min_tokens)
    )


def _match_plain(question: Question, tops: list[float], ids: list[int]) -> Answer:
    tokens: list[int] = []
    for row, top in enumerate(tops):
        if not math.isfinite(top):
            return Answer([], failure=NOT_FINITE)
        if not _stands(question, row, ids[row], tokens):
            break
    return Answer(tokens, len(tokens) - 1)


def _match_one_by_one(question: Question, rows: torch.Tensor) -> Answer:
    rule, counted = question.rule, question.history
    history = History(counted.prompt, dict(counted.counts), counted.generated)
    tokens: list[int] = []
    logprobs: list[tuple[float, list[tuple[int, float]]]] = []
    for row in range(len(question.draft) + 1):
        logits = rows[row].float()
        try:
            own = choose(logits, rule, history, question.position + row)
        except NotFinite:
            return Answer([], failure=NOT_FINITE)
        goes_on = _stands(question, row, own, tokens)
        history.add(tokens[-1])
        if rule.logprobs >= 0:
            logprobs.append(logprobs_of(logits, tokens[-1], rule.logprobs))
        if not goes_on:
            break
    return Answer(tokens, len(tokens) - 1, logprobs if rule.logprobs >= 0 else None)


def _stands(question: Question, row: int, own: int, tokens: list[int]) -> bool:
    """Add the token of this row; whether the next row counts: its input, the drafted token, was accepted."""
    if row < len(question.draft):
        drafted = question.draft[row]
        if question.accept == ALL or (question.accept == MATCH and drafted == own):
            tokens.append(drafted)
            return True
    tokens.append(own)
    return False
