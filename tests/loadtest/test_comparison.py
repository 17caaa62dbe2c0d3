"""Two sides: paired, with an interval, and their texts."""

from __future__ import annotations

import random

import pytest

from loadtest.comparison import Block, compare
from loadtest.outcome import Outcome


def took(index: int, seconds: float, text: str = "same", turn: int = 0, error: str = "") -> Outcome:
    outcome = Outcome(10.0, index=index, turn=turn, first=10.0 + seconds / 2, last=10.0 + seconds, ended=10.0 + seconds)
    outcome.completion_tokens, outcome.chunks, outcome.pieces, outcome.error = 11, 11, {0: [text]}, error
    return outcome


def blocks(*pairs: tuple[int, float]) -> list[Block]:
    return [Block(*pair) for pair in pairs]


def test_requests_are_paired_whatever_order_they_ended_in() -> None:
    first = [took(index, 2.0 + index) for index in range(6)]
    other = [took(index, (2.0 + index) / 2) for index in reversed(range(6))]
    seen = compare(first, other, (blocks((66, 12.0)), blocks((66, 6.0))), 0)
    assert seen["pairs"] == 6
    for name in ("e2e", "ttft", "tpot"):
        assert [seen[name][each] for each in ("ratio", "low", "high")] == [2.0, 2.0, 2.0]
    # One block says nothing of chance.
    assert seen["throughput"] == {"ratio": 2.0, "low": None, "high": None, "n": 1}


def test_a_request_that_failed_on_one_side_is_left_out() -> None:
    seen = compare([took(0, 1.0), took(1, 1.0)], [took(0, 1.0), took(1, 0.1, error="reset")], ([], []), 0)
    assert seen["pairs"] == 1 and seen["e2e"]["ratio"] == 1.0 and seen["throughput"] is None


def test_turns_of_a_session_are_one_witness() -> None:
    first = [took(0, 1.0, turn=turn) for turn in range(5)] + [took(1, 1.0)]
    other = [took(0, 0.5, turn=turn) for turn in range(5)] + [took(1, 1.0)]
    seen = compare(first, other, ([], []), 0)
    assert seen["e2e"]["n"] == 2 and seen["e2e"]["ratio"] == pytest.approx(2**0.5, abs=1e-4)


def test_noise_that_hits_both_makes_no_difference_and_the_interval_says_so() -> None:
    draw = random.Random(4)
    noise = [draw.uniform(0.5, 2.0) for _ in range(40)]
    first = [took(index, each) for index, each in enumerate(noise)]
    other = [took(index, each * draw.uniform(0.97, 1.03)) for index, each in enumerate(noise)]
    seen = compare(first, other, ([], []), 0)["e2e"]
    assert seen["low"] < 1.0 < seen["high"] and seen["high"] - seen["low"] < 0.03
    assert compare(first, other, ([], []), 0)["e2e"] == seen


def test_the_interval_holds_95_of_100_resamples() -> None:
    """All draws of one session: 1 in 27 of three sessions, which is more than the 2.5 % at either end; and of four
    sessions 1 in 256, and 5 in 256 with one other beside it, which is less."""

    def interval(sessions: int) -> list[float]:
        first = [took(index, 2.0**index) for index in range(sessions)]
        seen = compare(first, [took(index, 1.0) for index in range(sessions)], ([], []), 0)["e2e"]
        return [seen["low"], seen["high"]]

    assert interval(3) == [1.0, 4.0]
    assert interval(4) == pytest.approx([2 ** (2 / 4), 2 ** (10 / 4)], abs=1e-4)


def test_throughput_is_all_tokens_in_all_of_the_time() -> None:
    slow, fast = blocks((100, 10.0), (300, 10.0)), blocks((100, 5.0), (300, 15.0))
    seen = compare([], [], (slow, fast), 0)["throughput"]
    assert seen["ratio"] == 1.0 and seen["low"] == pytest.approx(0.6667, abs=1e-4) and seen["high"] == 2.0


def test_texts_that_differ_are_counted_and_the_first_is_shown() -> None:
    first = [took(0, 1.0), took(3, 1.0, "The sky is blue."), took(4, 1.0, "a")]
    other = [took(0, 1.0), took(3, 1.0, "The sky is red."), took(4, 1.0, "ab")]
    texts = compare(first, other, ([], []), 0)["texts"]
    assert (texts["same"], texts["differ"], texts["compared"]) == (1, 2, 3)
    assert texts["first_difference"] == {
        "request": 3, "turn": 0, "character": 11, "first": "blue.", "other": "red."
    }  # fmt: skip


def test_nothing_in_common_is_no_comparison() -> None:
    seen = compare([took(0, 1.0)], [took(1, 1.0)], ([], []), 0)
    assert seen["pairs"] == 0 and seen["e2e"] is None and seen["texts"]["first_difference"] is None
