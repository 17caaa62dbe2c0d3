"""Tables for a terminal."""

from __future__ import annotations

from typing import Any

import pytest
from heard import heard

from loadtest.comparison import Block, compare
from loadtest.measure import summarise
from loadtest.outcome import Outcome
from loadtest.report import WIDTH, tables

DRAFTS = {
    "num_draft_tokens": 123_456, "num_accepted_draft_tokens": 98_765, "num_spec_steps": 30_000,
    "acceptance_histogram_by_draft_length": {"16": [1] * 17},
}  # fmt: skip
LABELS = ("off", "auto", 'speculation={"method": "suffix", "learn": false, "num_speculative_tokens": 8, "trees": true}')


def outcomes(count: int) -> list[Outcome]:
    found = [heard([4] * 40, usage=123_456) for _ in range(count)]
    for index, each in enumerate(found):
        each.index, each.speculation = index, DRAFTS
    found[0].error, found[0].detail = "http_503", "a long reason " * 8
    return found


def run(label: str, at: int) -> dict[str, Any]:
    figures = summarise(outcomes(4), 12345.6, {"ttft": 0.5, "tpot": 0.05})
    title = f"{label}, {at} at a time" if label else f"{at} at a time"
    server = {f"counter_number_{each}_total": 1e6 for each in range(6)}
    return {"title": title, "side": label, "model": "m" * 30, "load": {"concurrency": at}, **figures, "server": server}


def compared(label: str, faster: float) -> dict[str, Any]:
    first, other = outcomes(6), outcomes(6)
    for number, each in enumerate(other):
        each.ended = 9.0 / (faster + 0.1 * (number - 2))
    blocks = [Block(100, 1.0), Block(100, 1.2)], [Block(100, 1.1), Block(100, 1.0)]
    return {"title": f"{label}, 4 at a time", "first": "off", "other": label, **compare(first, other, blocks, 0)}


@pytest.mark.parametrize("sides", [1, 2, 3])
def test_no_line_of_a_comparison_is_wider_than_80_columns(sides: int) -> None:
    runs = [run(label, at) for label in LABELS[:sides] for at in (1, 1024)]
    text = tables(runs, [compared(label, 2.0) for label in LABELS[1:sides]])
    assert max(map(len, text.splitlines())) <= WIDTH == 80
    assert all(word in text for word in ("ttft p99", "tok/s", "accepted", "http_503"))


def test_no_line_of_a_single_run_is_wider_than_80_columns() -> None:
    text = tables([run("", 4)], [])
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "296,295 of 370,368 draft tokens accepted" in text and "counter_number_5_total 1,000,000" in text


def test_figures_stand_under_their_names() -> None:
    lines = tables([run(label, at) for label in LABELS[:2] for at in (1, 4)], []).splitlines()
    head, first = lines[0], lines[1]
    assert first.startswith("off, 1 at a time") and head.index("failed") + 6 == first.index(" 1 ", 16) + 2
    assert len({len(line) for line in lines[:5]}) == 1


def test_an_interval_that_holds_1_is_called_no_clear_difference() -> None:
    text = tables([run("off", 4), run("auto", 4)], [compared("auto", 2.0)])
    by_name = {line.split("  ")[1].strip(): line for line in text.splitlines() if line.startswith("  ")}
    assert "no clear difference" in by_name["tokens/s"]
    assert "no clear difference" not in by_name["request"]
    assert by_name["texts"].split() == ["texts", "5", "same"]
