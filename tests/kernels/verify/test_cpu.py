"""Compiled loops against reference.py: the same integers, everywhere they are defined."""

from __future__ import annotations

import pytest
import torch
from cases import batch

from kernels.verify import cpu, reference
from kernels.verify.questions import Answers, Questions


def differing(logits: torch.Tensor, questions: Questions) -> list[int]:
    """The sequences that are told something else than by the reference."""
    told, truth = cpu.verify(logits, questions), reference.verify(logits, questions)
    begins = questions.begins.tolist()
    return [i for i, begin in enumerate(begins[:-1]) if _said(told, i, begin) != _said(truth, i, begin)]


def _said(answers: Answers, index: int, begin: int) -> tuple[list[int], list[int]] | None:
    if int(answers.failed[index]):
        return None
    span = slice(begin, begin + int(answers.accepted[index]) + 1)
    return answers.tokens[span].tolist(), answers.rows[span].tolist()


@pytest.mark.parametrize("first", range(0, 700, 50))
def test_mixed_batches_are_told_what_the_reference_says(first: int) -> None:
    cases = [batch(seed) for seed in range(first, first + 50)]
    assert [case for case in cases if differing(case.logits, case.questions)] == []


@pytest.mark.parametrize("seed", range(8))
def test_a_real_vocabulary_is_told_what_the_reference_says(seed: int) -> None:
    case = batch(1000 + seed, sequences=4, vocabularies=(49152, 49153, 32000), longest=3)
    assert differing(case.logits, case.questions) == []
