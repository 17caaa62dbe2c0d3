"""How other tools' figures are put beside ours; running them needs their environments."""

from __future__ import annotations

from bench.oracles.witnesses import FIGURES, OURS, median, too_far


def row(**changed: float) -> dict[str, float]:
    return dict.fromkeys(FIGURES, 100.0) | changed


def test_a_tool_that_says_something_else_is_named_with_how_far_it_is() -> None:
    assert too_far({OURS: row(), "other": row(ttft_p50_ms=104.9, tokens_per_s=95.1)}) == []
    assert too_far({OURS: row(), "other": row(ttft_p50_ms=106.0)}) == [
        "other: ttft_p50_ms is 1.060 of ours, the bar is 1 ± 0.05"
    ]


def test_a_round_that_was_disturbed_does_not_count() -> None:
    assert median([row(), row(ttft_p50_ms=900.0), row(ttft_p50_ms=102.0)])["ttft_p50_ms"] == 102.0
