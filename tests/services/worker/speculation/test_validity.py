"""Which drafts can be verified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from services.api.drafter import NO_DRAFT, Draft
from services.worker.speculation.validity import SUM_ERROR, is_valid

VOCABULARY = 50
MAKERS: list[Callable[..., Any]] = [np.array, torch.tensor]


@pytest.mark.parametrize(
    ("tokens", "parents", "valid"),
    [
        ([0], [], True),
        ([VOCABULARY - 1], [], True),
        ([VOCABULARY], [], False),
        ([VOCABULARY + 1], [], False),
        ([3, VOCABULARY], [], False),
        ([-1], [], False),
        ([-VOCABULARY], [], False),
        ([2**31 - 1], [], False),
        ([1, 2, 3], [-1, -1, 0], True),
        ([1, 2, VOCABULARY], [-1, -1, 0], False),
        ([1, 1], [-1, -1], False),
        ([1, 2], [-1], False),
        ([1, 2], [1, -1], False),
        ([], [], False),
    ],
)
def test_tokens_are_in_the_vocabulary_and_trees_are_trees(tokens: list[int], parents: list[int], valid: bool) -> None:
    assert is_valid(Draft(tokens, parents=parents), VOCABULARY) == valid


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("rows", "valid"),
    [
        ([[0.25, 0.5, 0.25], [0.0, 0.0, 1.0]], True),
        ([[0.25, 0.5, 0.25 + 0.5 * SUM_ERROR], [0.0, 0.0, 1.0]], True),
        ([[0.25, 0.5, 0.25 + 2 * SUM_ERROR], [0.0, 0.0, 1.0]], False),
        ([[0.25, 0.5, 0.25 - 2 * SUM_ERROR], [0.0, 0.0, 1.0]], False),
        ([[0.25, 0.5, 0.25], [0.5, 0.5, 0.0]], False),
        ([[0.25, 0.5, 0.25], [0.5, -0.25, 0.75]], False),
        ([[0.25, 0.5, 0.25], [0.0, float("nan"), 1.0]], False),
        ([[0.25, 0.5, 0.25], [0.0, 0.0, float("nan")]], False),
        ([[float("inf"), 0.5, 0.25], [0.0, 0.0, 1.0]], False),
        ([[float("inf"), -float("inf"), 1.0], [0.0, 0.0, 1.0]], False),
        ([[3e38, 3e38, 3e38], [0.0, 0.0, 1.0]], False),
        ([[0.25, 0.5, 0.25]], False),
        ([[0.25, 0.5, 0.25, 0.0], [0.0, 0.0, 1.0, 0.0]], False),
        ([0.25, 0.5, 0.25], False),
    ],
)
def test_probabilities_are_distributions_that_can_have_given_the_tokens(
    rows: list[Any], valid: bool, make: Callable[..., Any]
) -> None:
    dtype = np.float32 if make is np.array else torch.float32
    assert is_valid(Draft([1, 2], probs=make(rows, dtype=dtype)), 3) == valid


def test_distributions_over_many_tokens_are_as_exact_as_float32_is() -> None:
    logits = torch.randn(8, 150_000, generator=torch.Generator().manual_seed(1)) * 4
    probs = logits.softmax(-1)
    tokens = probs.argmax(-1).tolist()
    assert is_valid(Draft(tokens, probs=probs), 150_000) and is_valid(Draft(tokens, probs=probs.numpy()), 150_000)


def test_a_drafter_that_finds_nothing_gives_no_draft_to_verify() -> None:
    assert not is_valid(NO_DRAFT, VOCABULARY)
