"""Acceptance on held-out prompts as a section of docs/results.md."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from bench.results_of_acceptance import acceptance
from bench.results_page import PAGE, made
from tests.bench.made_rows import row


def cell(steps: float, differ: int = 0, positions: tuple[float, ...] = ()) -> dict[str, Any]:
    return {
        "tokens_per_step": steps, "decode_tokens_per_second": 100 * steps, "texts_differ": differ,
        "accepted_by_position": list(positions),
    }  # fmt: skip


def figures(**changed: Any) -> dict[str, Any]:
    auto = {"chat": cell(1.5), "all": cell(2.25, positions=(0.5, 0.25))}
    head = {"chat": cell(1.4, differ=2), "all": cell(2.0, positions=(0.75,))}
    point = {"head": "eagle3 x", "method": "eagle3", "tokens": 5000, "length": 4, "measured": {"chat": 1.2, "all": 1.3}}
    return {
        "model": "m", "dtype": "bfloat16", "max_tokens": 64, "prompts": {"chat": 14}, "missed": [],
        "heads": {"eagle3": {"method": "eagle3", "tokens": 52971, "answers": 500}},
        "temperatures": {"0": {"naive": {"chat": cell(1), "all": cell(1)}, "auto": auto, "eagle3:4": head}},
        "curve": [point, point | {"head": "eagle3 y", "tokens": 50_000, "tokens_per_step": 1.37}],
        "training": {"prompts.txt": {"prompts": 500, "overlap": 3}},
    } | changed  # fmt: skip


def page(*found: dict[str, Any]) -> dict[str, str]:
    return made({"acceptance": [row("acceptance", each, day=day) for day, each in enumerate(found, 1)]})


def test_it_is_a_table_of_methods_by_kind() -> None:
    text = page(figures())[PAGE]
    assert "| method | chat | all |" in text
    assert "| `naive` | 1.00 | 1.00 |" in text and "| `auto` | 1.50 | 2.25 |" in text
    assert "| `auto` | 150 | 225 |" in text
    assert "| `auto` | 0.50 | 0.25 |" in text and "| `eagle3:4` | 0.75 | – |" in text
    assert "m, bfloat16. Prompts: 14 chat; answers of at most 64 tokens." in text


def test_texts_that_differ_and_training_prompts_that_are_held_out_are_not_hidden() -> None:
    text = page(figures())[PAGE].replace("\n", " ")
    assert "| `eagle3:4` | 1.40, 2 texts differ |" in text
    assert "3 of 500 training prompts in prompts.txt are among the held-out ones." in text


def test_heads_say_what_they_were_trained_on_and_a_curve_is_a_table_and_a_picture() -> None:
    files = page(figures())
    assert "| `eagle3` | 500 | 52 971 | – |" in files[PAGE]
    assert "| `eagle3 x:4` | 5 000 | – | 1.20 | 1.30 |" in files[PAGE]
    assert "| `eagle3 y:4` | 50 000 | 1.37 | 1.20 | 1.30 |" in files[PAGE]
    for name, lines in (("acceptance", {"auto", "eagle3:4"}), ("acceptance-curve", {"chat", "all"})):
        place = f"pictures/results-some-cpu-2-{name}.svg"
        assert f"]({place})" in files[PAGE]
        texts = ElementTree.fromstring(files[place]).iter("{http://www.w3.org/2000/svg}text")
        assert lines <= {each.text for each in texts}


def test_an_older_row_is_shown_and_drawn_for_what_it_has_alone() -> None:
    wide, narrow = figures(), figures(temperatures={"0": {"naive": {"all": cell(1)}}}, curve=[], heads={})
    files = page(wide, narrow)
    assert len(files) == 3
    assert files[PAGE].index("2026-11-02") < files[PAGE].index("2026-11-01")
    assert len(page(wide, wide)) == 3 and "2026-11-01" not in page(wide, wide)[PAGE]


def test_a_curve_alone_or_nothing_is_no_fault() -> None:
    assert "`eagle3 x:4`" in page(figures(temperatures={}))[PAGE]
    assert acceptance({"acceptance": [row("acceptance", {"prompts": {}, "missed": []})]}) is None
    assert acceptance({}) is None


def test_the_same_drafts_are_a_line_for_each_method() -> None:
    one = {
        "method": "eagle3", "vllm": "0.32", "prompts": 80, "same_texts": 79, "drafts": 5000, "draft_tokens": 24_000,
        "equal_tokens": 23_990, "accepted_in_vllm": 0.7371, "accepted_here": 0.737, "missed": [],
    }  # fmt: skip
    speeds = {"tokens_per_second_in_vllm": 12.5, "tokens_per_second_here": 25.0, "different_tokens": 300}
    block = one | speeds | {"method": "mtp", "family": "mimo", "weights": "trained"}
    rows = (one, one | {"method": "medusa"}, block, block | {"weights": "random"})
    found = [row("same_drafts", each, day=day) for day, each in enumerate(rows, 1)]
    text = made({"same_drafts": found})[PAGE]
    assert "| `eagle3` | 0.32 | 79 of 80 | 5000 | 23990 of 24000 | – | 0.737 | 0.737 | – | – |" in text
    assert "| `medusa` |" in text and "| `mtp` of mimo, random |" in text
    assert "| `mtp` of mimo | 0.32 | 79 of 80 | 5000 | 23990 of 24000 | 300 | 0.737 | 0.737 | 12.5 | 25.0 |" in text
