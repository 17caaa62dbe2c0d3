"""What the benchmark of phases counts."""

from __future__ import annotations

import json

import pytest

from bench import split


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text}]}).encode()


def test_an_answer_has_its_text_and_a_gap_between_any_two_chunks() -> None:
    answer = split._read([event(""), b"\n", event("a"), event("b"), event("c"), event(""), b"data: [DONE]"], 0.0)
    assert answer.text == "abc" and len(answer.gaps) == 2 and answer.first > 0


@pytest.mark.parametrize(
    ("figures", "missed"),
    [
        ({"same_texts": True, "split_itl_p99_of_together": 0.5}, 0),
        ({"same_texts": True, "split_itl_p99_of_together": 0.7}, 1),
        ({"same_texts": False, "split_itl_p99_of_together": 0.7}, 2),
        ({"same_texts": True}, 0),
    ],
)
def test_the_bars_are_the_texts_and_the_time_between_tokens(figures: dict[str, float], missed: int) -> None:
    assert len(split._missed(figures)) == missed


def test_the_slowest_hundredth_is_seen_in_few_values() -> None:
    assert split._at([1.0, 2.0, 9.0], 0.99) == 9.0 and split._at([float(k) for k in range(200)], 0.99) == 198.0


def test_sides_that_hand_pages_over_run_with_each_transport() -> None:
    assert list(split.sides("together,split", "mesh")) == ["together", "split"]
    both = split.sides("together,split,split_2_1", "mesh,nixl")
    assert list(both) == ["together", "split", "split_nixl", "split_2_1", "split_2_1_nixl"]
    assert both["split_nixl"] == {"prefill_workers": 1, "decode_workers": 1, "page_transport": "nixl"}
    assert "page_transport" not in both["together"]
