"""The table of what has run where says what rows and marks of tests show, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.rows import read_all
from bench.status import NEVER, THINGS, evidence, marks, status
from tests.bench.made_rows import CPU, row

H200 = CPU | {"gpu": "NVIDIA H200"}
SMOLLM2 = "one NVIDIA H200, SmolLM2 135M"

STOPPED = {"ended_early": True, "in_process": {"1 stream": 900.0}}


def marked(folder: Path, *words: str) -> Path:
    tests = folder / "tests"
    tests.mkdir(exist_ok=True)
    said = ", ".join(map(repr, words))
    (tests / "test_x.py").write_text(f"import pytest\n\npytestmark = pytest.mark.shows({said})\n")
    return tests


def test_what_neither_a_row_nor_a_test_shows_has_never_run(tmp_path: Path) -> None:
    assert {each.level for each in evidence({}, tmp_path).values()} == {NEVER}


def test_a_row_of_the_device_shows_it_and_one_of_a_dry_run_or_that_was_stopped_does_not(tmp_path: Path) -> None:
    real, *void = (row("gpu_http", each, hardware=H200) for each in ({"runs": []}, {"dry_run": True}, STOPPED))
    assert evidence({"gpu_http": [real]}, tmp_path)[SMOLLM2].level == "served"
    assert evidence({"gpu_http": void}, tmp_path)[SMOLLM2].level == NEVER
    assert "2026-11-01, `abc1` |" in status({"gpu_http": [real]}, tmp_path)


def test_the_strongest_that_is_shown_counts(tmp_path: Path) -> None:
    tests = marked(tmp_path, SMOLLM2, "interpreted")
    assert evidence({}, tests)[SMOLLM2].test == "tests/test_x.py"
    assert evidence({"gpu_http": [row("gpu_http", {}, hardware=H200)]}, tests)[SMOLLM2].level == "served"


@pytest.mark.parametrize("words", [("a thing that nobody lists", "served"), (SMOLLM2, "surely"), (SMOLLM2,)])
def test_a_mark_that_says_something_unknown_is_refused_by_its_file(tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"tests/test_x\.py"):
        list(marks(marked(tmp_path, *words)))


def test_every_thing_of_a_mark_or_row_is_known_and_listed_once() -> None:
    assert len({thing.name for thing in THINGS}) == len(THINGS)
    assert evidence(read_all(), Path(__file__).resolve().parents[1])
