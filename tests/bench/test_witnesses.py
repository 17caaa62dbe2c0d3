"""How other tools' figures are put beside ours; running them needs their environments."""

from __future__ import annotations

import json
from pathlib import Path

from bench.witnesses import FIGURES, OURS, flags, median, prepare, rotated, table, too_far, turnaround_ms


def row(**changed: float) -> dict[str, float]:
    return dict.fromkeys(FIGURES, 100.0) | changed


def test_a_tool_that_says_something_else_is_named_with_how_far_it_is() -> None:
    assert too_far({OURS: row(), "other": row(ttft_p50_ms=104.9, tokens_per_s=95.1)}) == []
    assert too_far({OURS: row(), "other": row(ttft_p50_ms=106.0)}) == [
        "other: ttft_p50_ms is 1.060 of ours, the bar is 1 ± 0.05"
    ]
    assert "106.00 (1.060)" in table({OURS: row(), "other": row(ttft_p50_ms=106.0)})


def test_a_round_that_was_disturbed_does_not_count_and_everyone_begins_once() -> None:
    assert median([row(), row(ttft_p50_ms=900.0), row(ttft_p50_ms=102.0)])["ttft_p50_ms"] == 102.0
    assert [rotated(["a", "b", "c"], turn)[0] for turn in range(4)] == ["a", "b", "c", "a"]


def test_all_tools_get_the_same_prompts(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    prepare(tmp_path, flags().parse_args(["--requests=5", f"--tokenizer={tmp_path / 'kept'}"]))
    asked = [
        [next(iter(json.loads(line).values())) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("ours", "guidellm", "aiperf")
    ]
    assert asked[0] == asked[1] == asked[2] and len(asked[0]) == 5
    assert (tmp_path / "tokenizer").resolve() == (tmp_path / "kept").resolve()


def test_a_request_follows_the_earliest_end_that_nobody_followed() -> None:
    # Two callers: the first asks again after 10 ms, the second after 30 ms, the first again after 20 ms.
    spans = [(0.0, 1.0), (0.0, 1.1), (1.01, 2.0), (1.13, 2.5), (2.02, 3.0)]
    assert round(turnaround_ms(reversed(spans)), 6) == 20.0
    assert turnaround_ms([(0.0, 1.0), (0.5, 2.0)]) == 0.0
