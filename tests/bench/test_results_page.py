"""docs/results.md says what rows say and what they were measured on, and draws it; and the one in docs/ is that one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import results_page, rows
from bench.__main__ import NAMES
from bench.forms import FORMS, ON_GPU
from bench.results_page import PAGE, made
from bench.rows import Row
from bench.section import covering, table
from tests.bench.made_rows import CPU, method, row

SVG = "{http://www.w3.org/2000/svg}"
WITH_GPU = CPU | {"gpu": "Some GPU"}


def speculation(counts: tuple[int, ...] = (1, 8, 32), **changed: Any) -> dict[str, Any]:
    seen = {"naive": method(1.0), "ngram:5": method(1.5), "auto": method(2.25)} | changed
    by_name = {name: {str(at): seen for at in counts} for name in ("edit", "chat")}
    return {"cold": ["edit"], "workloads": by_name, "missed": []}


PEERS = {
    "dtype": "int8", "tokens_per_second": {"ours, in process": 210.0, "transformers": 23.0},
    "spread": {"ours, in process": [200.0, 220.0], "transformers": [22.0, 24.0]},
    "times_transformers": {"ours, in process": 9.13, "transformers": 1.0},
}  # fmt: skip
STEPS = {"step_ms": {"rows 8": 4.5}, "device_busy_ms": {"rows 8": 4.25}, "exposed_ms": {"rows 8": 0.25}}
DECODED = {"step_ms": {"batch 1": 6.5, "batch 64": 9.0}, "times_limit": {"batch 1": 1.15, "batch 64": 1.5}}
ANSWERED = {"tokens_per_s": 900.0, "tokens_per_step": 3.5, "step_p50_ms": 1.25}
RUN = {"workload": "chat", "server": "auto", "concurrency": 16, "tokens_per_s": 4000.0, "ttft_p50_ms": 9.0,
       "tpot_p50_ms": 2.0, "accepted_per_step": None, "failed": 0}  # fmt: skip
# Figures of each stage, and a line of the page that shows them.
STAGES: dict[str, tuple[dict[str, Any], str]] = {
    "on_gpu": ({"stage": "parity", "how": "died of signal 11", "seconds": 9.5, "code": -11}, "| parity | died of"),
    "gpu_environment": (
        {"machine": {"driver": "580"}, "limits": {"copy_gb_s": 4300.0}, "arch": 90,
         "compiled": {"gemm": {"kernels": 3, "seconds": 9.5, "registers": 128, "shared": 4096, "spills_in_loops": 0},
                      "quant": {"problem": "none"}}},
        "| gemm | 3 | 9.5 | 128 | 4096 | 0 |",
    ),
    "gpu_law3": (
        {"weights": "random", "ways": {"greedy, trees": {"tokens": 512, "accepted": 9, "first_difference": 3}}},
        "| greedy, trees | 512 | 9 | **other** |",
    ),
    "gpu_steps": ({"graphs": STEPS, "eager": STEPS}, "| rows 8 | 4.5 | 4.25 | 0.25 | 4.5 | 4.25 | 0.25 |"),
    "gpu_decode": ({"strict": DECODED, "fast": DECODED}, "| strict | 6.5 | 9 |"),
    "gpu_attention": (
        {"us": {"64 at 4096": {"1 queries": 250.0}}, "of_bandwidth": {"64 at 4096": {"1 queries": 0.75}}},
        "| 64 at 4096 | 250 |",
    ),
    "gpu_runner": (
        {"weights": "random", "1 at once": {"no drafts": ANSWERED}}, "| 1 at once | no drafts | 900 | 3.5 | 1.25 |"
    ),
    "gpu_prefill": (
        {"tokens_per_s": {"512 tokens": 9000.0}, "of_matmul": {"512 tokens": 0.5}}, "| tokens per second | 512 tokens |"
    ),
    "gpu_http": ({"runs": [RUN]}, "| chat | auto | 16 | 4 000 | 9 | 2 | – | 0 |"),
}  # fmt: skip


def page(**all_rows: list[Row]) -> str:
    return made(all_rows)[PAGE]


def test_a_table_says_what_its_figures_were_measured_on() -> None:
    text = page(peers=[row("peers", PEERS, "--dtype int8", day=3, dirty=True)])
    assert "| ours, in process | 210 | 200 – 220 | 9.13 × |" in text
    when = "*2026-11-03 10:20 UTC, commit `abc3` with changes that were not committed"
    assert f"{when}; Some CPU, 2 cores, load average 1.25:* `python -m bench peers --dtype int8`" in text
    assert "## Some CPU, 2 cores" in text and "8.0 GB; avx2." in text


def test_speculation_is_a_table_by_requests_at_a_time_and_two_pictures() -> None:
    files = made({"speculation": [row("speculation", speculation())]})
    text = files[PAGE]
    assert "| request | method | 1 at a time | 8 at a time | 32 at a time | while it is read | tokens a step |" in text
    assert "| edit, cold | `naive` | 50 tokens/s | 50 tokens/s | 50 tokens/s | 50 tokens/s | 2.5 |" in text
    assert "| chat, warm | `auto` | 2.25 × | 2.25 × | 2.25 × | 2.25 × (1.75–2.75) | 2.5 |" in text
    assert "- `edit`: repeat a function under another name." in text
    for name in ("auto", "ngram"):
        place = f"pictures/results-some-cpu-2-speculation-{name}.svg"
        assert f"]({place})" in text
        words = {each.text for each in ElementTree.fromstring(files[place]).iter(f"{SVG}text")}
        assert {"edit", "chat", "requests at a time", "1", "2", "4", "8", "16", "32"} <= words


def test_texts_that_differ_and_bars_that_are_missed_are_not_hidden() -> None:
    figures = speculation(auto=method(2.25, differ=3)) | {"missed": ["edit: auto is 2.25 x naive, the bar is 3.0"]}
    text = page(speculation=[row("speculation", figures)])
    assert "2.25 ×, 3 texts differ" in text
    assert "- missed: edit: auto is 2.25 x naive, the bar is 3.0" in text


def test_what_is_worse_than_the_row_before_stands_under_the_table() -> None:
    slower = PEERS | {"tokens_per_second": {"ours, in process": 100.0}}
    text = page(peers=[row("peers", PEERS, day=1), row("peers", slower, day=2)])
    assert "- worse than 2026-11-01 abc1: tokens_per_second/ours, in process 210 -> 100 (-52 %)" in text


def test_the_widest_row_is_drawn_and_a_newer_narrow_one_is_shown_first() -> None:
    wide, narrow = speculation((1, 2, 4, 8, 16, 32)), speculation((1, 8), auto=method(3.5))
    files = made({"speculation": [row("speculation", wide, "--wide", day=1), row("speculation", narrow, day=2)]})
    text = files[PAGE]
    assert text.index("bench speculation`") < text.index("bench speculation --wide`")
    assert "The pictures are of the row of 2026-11-01, commit `abc1`." in text


def test_without_a_row_of_a_gpu_it_says_so_and_with_one_it_has_a_chapter_of_its_own() -> None:
    alone = page(peers=[row("peers", PEERS)])
    assert "Not run on a GPU" in alone
    both = page(gpu_decode=[row("gpu_decode", STAGES["gpu_decode"][0], hardware=WITH_GPU)], peers=[row("peers", PEERS)])
    assert "Not run on a GPU" not in both
    assert both.index("## Some CPU, 2 cores\n") < both.index("## Some CPU, 2 cores, Some GPU")


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_of_a_gpu_is_shown_and_one_of_a_dry_run_is_not(name: str) -> None:
    figures, line = STAGES[name]
    assert line in page(**{name: [row(name, figures, hardware=WITH_GPU)]})
    assert line not in page(**{name: [row(name, figures | {"dry_run": True}, hardware=WITH_GPU)]})


def test_every_stage_has_its_place_on_the_page() -> None:
    assert {part.name for part in FORMS[ON_GPU]} <= {*STAGES, "parity", "gpu_verify"}


def test_verification_on_a_gpu_and_its_parity_stand_beside_each_other() -> None:
    figures = {"us": {"greedy": {"64 x 4": 21.0}}, "times_floor": {"greedy": {"64 x 4": 1.25}}}
    file = {"passed": 40, "failed": ["test_x"], "skipped": 2, "seconds": 9.0}
    parity = {"passed": 40, "skipped": 2, "files": {"tests/a.py": file}, "missed": ["tests/a.py: test_x failed"]}
    text = page(
        gpu_verify=[row("gpu_verify", figures, hardware=WITH_GPU)], parity=[row("parity", parity, hardware=WITH_GPU)]
    )
    assert "| greedy | 21 (1.25 ×) |" in text
    assert "| tests/a.py | 40 | 1 | 2 |" in text and "- missed: tests/a.py: test_x failed" in text


def test_servers_side_by_side_are_a_table_by_request() -> None:
    seen = {
        "server": "a peer", "concurrency": 4, "tokens_per_s": 90.0, "ttft_p50_ms": 30.0, "ttft_p99_ms": 50.0,
        "tpot_p50_ms": 11.0, "e2e_p50_ms": 900.0, "ok": 12, "failed": 0, "output_tokens": 900,
    }  # fmt: skip
    served = {"servers": ["a peer"], "tokens": 64, "cold": ["chat"], "chat": [seen], "edit": [seen]}
    text = page(peers=[row("peers", served), row("peers", PEERS, day=2)])
    assert "| edit, 4 at a time | a peer |" in text
    assert "| chat (cold), 4 at a time | a peer | 90 | 30 | 50 | 11 | 900 | 0 |" in text
    assert "| int8 | tokens/s |" in text


def test_a_comparison_with_an_older_commit_is_a_table_of_cells() -> None:
    ratio = {"mean": 0.951, "low": 0.93, "high": 0.97}
    cell = {"pairs": 5, "old": 50.0, "new": 47.5, "differ": 1} | ratio
    cells = {"chat, 4 at a time, auto": cell, "edit, 1 at a time, auto": {"pairs": 1, "differ": 0}}
    figures = {"old": "abc", "tokens": 96, "cells": cells, "mean": ratio, "worst": ratio}
    text = page(compare=[row("compare", figures | {"missed": ["mean: 0.951"]})])
    assert "| chat, 4 at a time, auto | 5 | 50 | 47.5 | 0.951 | 0.930 | 0.970 | 1 |" in text
    assert "| edit, 1 at a time, auto | 1 | – | – | – | – | – | 0 |" in text
    assert "| mean of all cells | – | – | – | 0.951 | 0.930 | 0.970 | – |" in text and "- missed: mean" in text


def test_what_the_mesh_adds_to_a_step_is_one_figure_a_cell() -> None:
    drafts = {"prepared": {"p50_ms": 5.16, "added_p50_ms": 0.03}, "waited": {"p50_ms": 5.39, "added_p50_ms": 0.26}}
    figures = {"step_ms": 5.0, "naive": {"itl_p50_ms": 5.13, "added_p50_ms": 0.05}, "drafts": drafts}
    text = page(step_overhead=[row("step_overhead", figures), row("step_overhead", {"between_steps_us": {}}, day=2)])
    assert "| without a draft | 5.13 | 0.05 |" in text
    assert "| with a draft that was waited for | 5.39 | 0.26 |" in text


def test_machines_that_differ_in_little_have_pictures_of_their_own() -> None:
    one, other = (row("speculation", speculation(), hardware=CPU | {"flags": flags}) for flags in ([], ["avx2"]))
    files = made({"speculation": [one, other]})
    assert len([name for name in files if name.endswith(".svg")]) == 4
    assert files[PAGE].count("## Some CPU, 2 cores\n") == 2


def test_figures_of_a_form_that_is_no_longer_known_are_left_out() -> None:
    unknown = {name: [row(name, {"dtype": "int8", "missed": ["a bar of then"]})] for name in NAMES}
    assert "a bar of then" not in page(**unknown)


def test_the_newest_rows_that_show_everything_are_shown() -> None:
    found = [row("x", {"has": has}, day=day) for day, has in enumerate(["a", "bc", "b", "b"], 1)]
    assert [each["date"][8:10] for each in covering(found, lambda figures: set(figures["has"]))] == ["04", "02", "01"]


def test_a_table_without_lines_is_nothing() -> None:
    assert table(["a", "b"], []) == ""
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n|---|---|\n| 1 | 2 |"


def test_it_is_written_checked_and_tidied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, docs = tmp_path / "results", tmp_path / "docs"
    rows.append("speculation", ["speculation"], speculation(), results)
    stale = docs / "pictures" / "results-gone.svg"
    stale.parent.mkdir(parents=True)
    stale.write_text("<svg/>")
    assert results_page.main(["--check"], docs, results) == 1
    assert f"{PAGE} is behind" in (said := capsys.readouterr().out) and "results-gone.svg is behind" in said
    assert results_page.main([], docs, results) == 0
    assert results_page.main(["--check"], docs, results) == 0
    assert not stale.exists() and (docs / PAGE).exists()
    rows.append("peers", ["peers"], PEERS, results)
    assert results_page.main(["--check"], docs, results) == 1


def test_the_page_in_docs_is_what_the_rows_say() -> None:
    assert results_page.main(["--check"]) == 0, "run `python -m bench results`"


def test_the_page_in_docs_shows_every_picture_it_has_and_has_every_picture_it_shows() -> None:
    files = made(rows.read_all())
    assert set(re.findall(r"\]\((pictures/results-[^)]+)\)", files[PAGE])) == set(files) - {PAGE}
    for name in set(files) - {PAGE}:
        assert ElementTree.fromstring(files[name]).tag == f"{SVG}svg"
