"""Claims about figures: read, looked up, told."""

from __future__ import annotations

from typing import Any

import pytest
from heard import heard

from loadtest.assertions import COMPARED, NAMED, assertion, looked_up
from loadtest.comparison import Block, compare
from loadtest.measure import summarise

RUN: dict[str, Any] = {"title": "one", "ttft_s": {"p99": 0.42}, "requests": {"error_rate": 0.02, "failed": 1}}


@pytest.mark.parametrize(
    "text",
    ["p99(ttft)<0.5", " p99( ttft ) <= 420ms ", "error_rate<5%", "failed==1", "requests.failed != 0", "failed>=1"],
)
def test_a_claim_that_is_so_says_nothing(text: str) -> None:
    assert assertion(text).failures([RUN], []) == []


@pytest.mark.parametrize(
    ("text", "value"), [("p99(ttft)<0.4", "0.42"), ("p99(ttft)>=421ms", "0.42"), ("failed<1", "1")]
)
def test_a_claim_that_is_not_so_says_what_is(text: str, value: str) -> None:
    assert assertion(text).failures([RUN, RUN], []) == [f"{text} (one): it is {value}"] * 2


def test_a_figure_that_is_not_there_fails() -> None:
    assert assertion("p99(itl)<9").failures([RUN], []) == ["p99(itl)<9 (one): there is no such figure"]
    assert assertion("texts_differ==0").failures([RUN], []) == ["texts_differ==0: nothing was compared"]


def test_a_claim_about_two_sides_is_held_against_the_comparisons() -> None:
    row = {"title": "auto", "throughput": {"ratio": 1.4, "low": 1.2}, "texts": {"differ": 2}}
    assert assertion("speedup_low>1").failures([RUN], [row]) == []
    assert assertion("texts_differ==0").failures([RUN], [row]) == ["texts_differ==0 (auto): it is 2"]


@pytest.mark.parametrize(
    "text",
    [
        "", "p99(ttft)", "p95(ttft)<1", "p99(speed)<1", "nonsense<1", "p99(ttft)<x", "p99(ttft)<0.5 or 1",
        "__import__('os')<1", "p99(ttft)=1", "failed<1minute",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        assertion(text)


def test_every_name_stands_in_the_figures() -> None:
    outcome = heard([4, 4], told=[1, 2])
    outcome.speculation = {"num_draft_tokens": 4, "num_accepted_draft_tokens": 2, "num_spec_steps": 1}
    run = summarise([outcome], 1.0, {"ttft": 1.0})
    assert [name for name, path in NAMED.items() if looked_up(run, path) is None] == []
    one = compare([outcome], [outcome], ([Block(1, 1.0)] * 2, [Block(1, 1.0)] * 2), 0)
    assert [name for name, path in COMPARED.items() if looked_up(one, path) is None] == []
