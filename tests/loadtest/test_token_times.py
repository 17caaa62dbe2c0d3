"""Tokens of chunks: told, or shared out."""

from __future__ import annotations

import numpy as np
from heard import heard
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.outcome import Outcome
from loadtest.token_times import gaps, per_chunk, per_token, tokens_of


def test_what_the_server_says_of_a_chunk_counts() -> None:
    assert list(per_chunk(heard([1, 50], told=[3, 2], usage=5))) == [3, 2]


def test_tokens_of_usage_are_shared_out_by_characters() -> None:
    assert list(per_chunk(heard([4, 20, 4], usage=7))) == [1, 5, 1]
    assert list(per_chunk(heard([4, 4, 4], usage=3))) == [1, 1, 1]


def test_the_token_that_ends_an_answer_is_in_no_chunk() -> None:
    assert list(per_chunk(heard([4, 4, 4], usage=4, finish="stop"))) == [1, 1, 1]


def test_without_usage_a_chunk_is_a_token_unless_it_says_more() -> None:
    assert tokens_of(heard([4, 4])) == 2 and list(per_chunk(heard([4, 4]))) == [1, 1]
    assert tokens_of(heard([4, 4], told=[5, 1])) == 6


def test_a_chunks_tokens_come_at_one_time() -> None:
    outcome = heard([4, 4, 4], told=[2, 1, 3])
    assert sorted(gaps(outcome)) == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert per_token(outcome) == 2.0 / 5


def test_a_single_token_has_no_time_between() -> None:
    assert per_token(heard([4])) is None and len(gaps(heard([4]))) == 0
    silent = Outcome(0.0, completion_tokens=0)
    assert per_token(silent) is None and len(gaps(silent)) == 0


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=40), st.integers(0, 300))
def test_all_tokens_find_a_chunk_and_no_chunk_is_empty(sizes: list[int], more: int) -> None:
    counts = per_chunk(heard(sizes, usage=len(sizes) + more))
    assert counts.sum() == len(sizes) + more and counts.min() >= 1
    assert len(gaps(heard(sizes, usage=len(sizes) + more))) == counts.sum() - 1
    ordered = counts[np.argsort(np.maximum(sizes, 1), kind="stable")]
    assert all(ordered[1:] + 1 >= ordered[:-1])
