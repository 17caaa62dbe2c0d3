"""The rows of a step, against the same made in numpy (batch_in_numpy.py)."""

from __future__ import annotations

import random
from dataclasses import fields

import numpy as np
import pytest

from models import batch as batches
from models.batch import Batch, Stretch, make_batch
from models.branches import own_pages
from tests.models import batch_in_numpy


def same(one: Batch, other: Batch) -> None:
    for field in fields(Batch):
        expected, found = getattr(one, field.name), getattr(other, field.name)
        if field.name in ("table_width", "states_only"):
            assert expected == found, field.name
        else:
            assert expected.dtype == found.dtype and expected.shape == found.shape, field.name
            assert np.array_equal(expected, found) and found.flags.c_contiguous, field.name


def drawn(draw: random.Random, page_tokens: int, tree: bool) -> Stretch:
    count, start = draw.choice([1, 1, 5, 16, 17, 40]), draw.choice([0, 3, 31, 100])
    tokens = [draw.randrange(50_000) for _ in range(count)]
    pages = draw.sample(range(10_000), -(-(start + count) // page_tokens) + draw.choice([0, 2]))
    wanted_from = draw.choice([0, 0, count - 1, count])
    if not tree or count == 1:
        settled = draw.choice([-1, start + 1])
        state, states_only = draw.choice([0, 7]), draw.random() < 0.3
        return Stretch(tokens, start, pages, wanted_from, state=state, settled=settled, states_only=states_only)
    likely = draw.choice([0.0, 0.5, 0.9])
    parents = [row - 1 if draw.random() < likely else draw.randrange(-1, row) for row in range(count - 1)]
    return Stretch(
        tokens, start, pages, wanted_from, parents, range(9000, 9000 + own_pages(parents, start, page_tokens))
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("trees", [0.0, 0.3, 1.0])
def test_batches_are_those_made_in_numpy(seed: int, trees: float) -> None:
    draw = random.Random(seed)
    for _ in range(10):
        page_tokens = draw.choice([1, 8, 16, 32])
        stretches = [drawn(draw, page_tokens, draw.random() < trees) for _ in range(draw.choice([1, 2, 9]))]
        same(batch_in_numpy.make_batch(stretches, page_tokens), make_batch(stretches, page_tokens))


def test_tokens_and_pages_may_be_any_sequence_of_ints() -> None:
    expected = make_batch([Stretch([1, 2, 3], 7, [4, 5], 1)], 8)
    same(expected, make_batch([Stretch((1, 2, 3), 7, range(4, 6), 1)], 8))
    same(expected, make_batch([Stretch(np.array([1, 2, 3]), 7, np.array([4, 5], np.int32), 1)], 8))


@pytest.mark.parametrize("stretch", [Stretch([1, 2, 3], 7, [4], 0), Stretch([], 7, [4], 0)])
def test_rows_without_a_page_and_stretches_without_rows_are_refused(stretch: Stretch) -> None:
    with pytest.raises(AssertionError):
        make_batch([Stretch([1], 0, [0], 0), stretch], 8)


def test_batches_of_all_kinds_are_compiled_once() -> None:
    """A second compilation would make a request wait."""
    make_batch([Stretch([1], 0, [0], 0)], 16)
    make_batch([Stretch(range(20), 3, range(9), 19), Stretch([5, 6, 7], 20, [4, 2], 0, [-1, -1], [11])], 16)
    assert len(batches._fill.signatures) == 1
