"""docs/results.md says what clean rows say and what they were measured on; and the one in docs/ is that one."""

from __future__ import annotations

from typing import Any

import pytest

from bench import results_page, rows
from bench.names import BENCHMARKS, load
from bench.results_page import page, section
from bench.rows import Row
from bench.shown import Shown, lines_of, number
from tests.bench.made_rows import CPU, row

PEERS: dict[str, Any] = {
    "dtype": "int8", "tokens_per_second": {"ours": 210.0, "transformers": 21.0},
    "ratio": {"ours": {"ratio": 10.0, "low": 9.5, "high": 10.5}},
}  # fmt: skip
OURS = "| ours | 210 | 10.00 (9.50–10.50) |"


def peers(day: int = 1, **changed: Any) -> Row:
    return row("peers", PEERS | changed.pop("figures", {}), day=day, **changed)


def test_the_newest_row_of_each_variant_is_shown_with_what_it_was_measured_on() -> None:
    slower = {"tokens_per_second": {"ours": 200.0}, "missed": ["ours: too slow"]}
    text = page({"peers": [peers(1), peers(2, figures=slower, hardware=CPU | {"busy_before": 0.071})]})
    assert "| ours | 200 | 10.00 (9.50–10.50) |" in text and OURS not in text
    assert "- 2026-11-02, `abc2`, 7% busy: `peers`\n  - missed: ours: too slow" in text
    assert "## Some CPU, 2 cores" in text and "(int8)" in text
    both = page({"peers": [peers(1), peers(2, figures={"dtype": "bfloat16"})]})
    assert "| int8, ours | 210 |" in both and "| bfloat16, transformers | 21 | – |" in both


def test_of_many_bars_that_a_row_missed_the_first_are_shown_and_the_rest_counted() -> None:
    text = page({"peers": [peers(figures={"missed": [f"bar {number}" for number in range(6)]})]})
    assert "missed: bar 3\n  - missed: 2 more, in the row\n" in text and "bar 4" not in text


@pytest.mark.parametrize("unfit", [{"dirty": True}, {"figures": {"dry_run": True}}], ids=["dirty", "dry run"])
def test_a_row_of_changes_that_were_not_committed_or_of_a_dry_run_is_not_shown(unfit: dict[str, Any]) -> None:
    assert "abc2" not in page({"peers": [peers(1), peers(2, **unfit)]}) and OURS in page({"peers": [peers(1)]})


def test_each_kind_of_machine_has_a_chapter_and_those_with_a_gpu_come_last() -> None:
    text = page({"peers": [peers(1, hardware=CPU | {"gpu": "Some GPU"}), peers(2)]})
    assert text.index("## Some CPU, 2 cores\n") < text.index("## Some CPU, 2 cores, Some GPU") and text.count(OURS) == 2


def test_figures_of_a_form_that_is_no_longer_known_are_left_out() -> None:
    unknown = {name: [row(name, {"dtype": "int8", "missed": ["a bar of then"]})] for name in BENCHMARKS}
    assert "a bar of then" not in page(unknown)


def test_lines_are_named_by_what_patterns_matched_or_by_their_own_figures() -> None:
    figures = {"ways": {"a": {"x": {"n": 1}}, "b": {"x": {"n": 2}}}, "runs": [{"who": "me", "n": 3}]}
    assert [line.name for line in lines_of(Shown("", "ways>a|b>x"), figures)] == ["a", "b"]
    assert [line.name for line in lines_of(Shown("", "runs>*", named=("who",)), figures)] == ["me"]
    made = section(Shown("t", "ways>*", {"x>n": "n", "none": "left out"}), [row("x", figures)])
    assert made == "### t\n\n|  | n |\n|---|---|\n| a | 1 |\n| b | 2 |"
    assert (number(66400), number(0.12345), number(None)) == ("66 400", "0.123", "–")


def test_every_benchmark_says_how_its_rows_are_shown() -> None:
    assert all(load(name).SHOWN for name in BENCHMARKS)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_table_of_a_benchmark_has_lines_in_the_rows_that_it_has_left(name: str) -> None:
    """A figure under another name would be left out without a word, and most machines can't measure a GPU's again."""
    figures = [row["figures"] for row in rows.read(name)]
    empty = [shown.title for shown in load(name).SHOWN if not any(lines_of(shown, each) for each in figures)]
    assert not figures or empty == []


def test_the_page_in_docs_is_what_the_rows_say() -> None:
    assert results_page.main(["--check"]) == 0, "run `python -m bench results`"
