"""What is counted of an overload: tokens in the seconds in which they came, refusals and what they cost, and bars."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from bench.failures.overload import best, conclude, goodput, missed, told
from loadtest.outcome import FIRST, Outcome


def answered(first: float, tokens: int, every: float = 1.0) -> Outcome:
    """A token a chunk."""
    found = Outcome(0.0, first=first, last=first + every * (tokens - 1), ended=first + every * tokens, finish="length")
    found.gaps = array("f", [FIRST] + [every] * (tokens - 1))
    found.told = found.sizes = array("I", [1] * tokens)
    found.chunks = found.completion_tokens = tokens
    return found


def refused(seconds: float, retry_after: str = "1") -> Outcome:
    return Outcome(0.0, started=1.0, ended=1.0 + seconds, error="http_429", retry_after=retry_after)


def test_tokens_count_in_their_second_and_only_of_answers_that_end_well() -> None:
    # From the 5th second to the 20th there are 15 of the 30.
    assert goodput([answered(0.0, 30)], 20.0) == 1.0
    assert goodput([answered(0.0, 5), answered(20.0, 5), Outcome(0.0, error="truncated", first=6.0)], 20.0) == 0.0


def test_the_best_is_the_step_with_the_most_tokens_and_its_rate_that_of_its_answers() -> None:
    found = best({"8": 60.0, "16": 90.0, "32": 80.0}, [answered(0.0, 20), answered(0.0, 40), refused(0.01)])
    assert found == {"callers": 16, "tokens/s": 90.0, "requests/s": 3.0}
    with pytest.raises(RuntimeError, match="nothing was answered"):
        best({"8": 0.0}, [refused(0.01)])


def overloaded(greedy: list[Outcome], modest: list[Outcome]) -> dict[str, Any]:
    found = {"best": {"tokens/s": 2.0}, "keys": {"modest": {"alone": told([answered(0.0, 30)], 20.0)}}}
    conclude(found, {"modest": modest, "greedy": greedy}, 20.0)
    return found


def test_a_server_that_refuses_at_once_and_serves_the_modest_key_misses_no_bar() -> None:
    found = overloaded([answered(0.0, 30), refused(0.03), refused(0.09)], [answered(0.0, 30)])
    assert missed(found) == []
    over = found["overload"]
    assert (over["of best"], over["refused"], over["refusals, ms"]["max"]) == (1.0, 2, 90.0)
    assert found["keys"]["greedy"]["refused"] == 2 and found["keys"]["modest"]["of alone"] == 1.0


def test_each_bar_is_missed_alone() -> None:
    greedy, modest = [answered(0.0, 30)], [answered(0.0, 30)]
    assert "of the best" in missed(overloaded([], modest))[0]
    assert "took more than 0.1 s" in missed(overloaded([*greedy, refused(0.2)], modest))[0]
    assert "without Retry-After" in missed(overloaded([*greedy, refused(0.01, "")], modest))[0]
    broken = Outcome(0.0, error="truncated")
    assert "requests failed: {'truncated': 1}" in missed(overloaded([*greedy, broken], modest))[0]
    assert "the modest key got 0.0" in missed(overloaded(greedy * 2, [refused(0.01)]))[0]
