"""The sentence a run comes to."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.verdict import verdict


def run(load: dict[str, Any], ttft: float = 0.1, side: str = "", **more: Any) -> dict[str, Any]:
    rate = load.get("rate")
    spread = {"p50": ttft / 2, "p99": ttft, "min": ttft / 4}
    return {
        "side": side,
        "load": {"open_loop": bool(rate), "process": "poisson" if rate else "closed", **load},
        "requests": {"sent": 100, "failed": 0},
        "throughput": {"output_tokens_per_s": 100.0 * (rate or load.get("concurrency", 1))},
        "wall_s": 100.0 / rate if rate else 10.0,
        "ttft_s": spread,
        "e2e_s": spread,
        "e2e_growth": 0.0,
        "goodput": None,
        **more,
    }


def within(limit: float) -> dict[str, Any]:
    return {"goodput": {"limits_s": {"ttft": limit}, "share": 0.9, "requests_per_s": 3.0}}


def test_a_single_run_says_how_fast_it_was() -> None:
    said = verdict([run({"concurrency": 4})], [])
    assert (
        said
        == "With 4 at a time: 400 tokens/s, first token after 50 ms (p50) and 100 ms (p99), 0 of 100 requests failed."
    )
    assert "At 10 requests/s (poisson)" in verdict([run({"rate": 10.0})], [])
    assert "90% of requests met ttft 500 ms: 3.00/s." in verdict([run({"rate": 10.0}, **within(0.5))], [])


def test_a_server_that_fell_behind_and_a_harness_at_its_limit_are_named() -> None:
    behind = run({"rate": 10.0}, wall_s=20.0, e2e_growth=0.9, harness={"cpu_share": 0.97, "loop_lag_s": None})
    said = verdict([behind], [])
    assert "did not keep up: 5.01 requests/s" in said and "97% of a core" in said
    # A short run whose last answer took long has not fallen behind.
    assert "keep up" not in verdict([run({"rate": 10.0}, wall_s=20.0)], [])
    late = run({"rate": 10.0}, harness={"cpu_share": 0.1, "loop_lag_s": {"p99": 0.03}})
    assert "30 ms late" in verdict([late], [])
    assert "left 40 ms late" in verdict([run({"rate": 10.0}, start_lateness_s={"p99": 0.04})], [])


def test_a_sweep_of_rates_says_what_is_held_and_what_broke() -> None:
    runs = [run({"rate": rate}, ttft=ttft, **within(0.45)) for rate, ttft in ((4.0, 0.2), (12.0, 0.441), (16.0, 0.7))]
    assert (
        verdict(runs, []) == "Holds 12 requests/s at p99 TTFT under 450 ms; not 16: p99 of TTFT is 700 ms, over 450 ms."
    )
    assert verdict(runs[:2], []) == "Holds at least 12 requests/s at p99 TTFT under 450 ms."
    assert verdict(runs[2:] + runs[2:], []).startswith("Does not hold even 16 requests/s: p99 of TTFT is 700 ms")
    behind = run({"rate": 16.0}, wall_s=20.0, e2e_growth=0.5)
    assert "not 16: only 5.01 requests/s ended" in verdict([run({"rate": 4.0}), behind], [])
    failing = run({"rate": 16.0}, requests={"sent": 100, "failed": 3})
    assert "3 of 100 requests failed" in verdict([run({"rate": 4.0}), failing], [])


def test_what_is_held_is_held_up_to_the_first_rate_that_is_not() -> None:
    runs = [run({"rate": rate}, ttft=ttft, **within(0.5)) for rate, ttft in ((4.0, 0.2), (8.0, 0.6), (16.0, 0.4))]
    assert verdict(runs, []).startswith("Holds 4 requests/s")


def test_a_sweep_of_callers_says_where_most_comes_out() -> None:
    runs = [run({"concurrency": count}, ttft=0.05 * count, **within(0.3)) for count in (1, 4, 8)]
    assert verdict(runs, []) == "Gives most with 4 at a time: 400 tokens/s at p99 TTFT under 210 ms."


def row(at: int, ratio: float, low: float | None, high: float | None, differ: int = 0) -> dict[str, Any]:
    seen = {"ratio": ratio, "low": low, "high": high, "n": 5}
    return {
        "first": "off", "other": "auto", "load": {"open_loop": False, "concurrency": at},
        "throughput": seen, "e2e": seen, "texts": {"compared": 10, "same": 10 - differ, "differ": differ},
    }  # fmt: skip


def test_two_sides_are_compared_with_how_sure_that_is() -> None:
    sides = [run({"concurrency": 1}, side="off"), run({"concurrency": 1}, side="auto")]
    said = verdict(sides, [row(1, 2.31, 2.1, 2.52)])
    assert "auto is 2.31 times as fast as off (tokens/s, 95 %: 2.10 to 2.52)." in said
    assert said.endswith("Of 10 answers of both all texts are the same.")
    assert "2 of 10 texts differ" in verdict(sides, [row(1, 2.31, None, None, differ=2)])


def test_an_interval_that_holds_1_is_no_clear_difference() -> None:
    sides = [run({"concurrency": 1}, side="off"), run({"concurrency": 1}, side="auto")]
    said = verdict(sides, [row(1, 1.02, 0.93, 1.1)])
    assert "auto beside off: no clear difference (tokens/s 1.02 times, 95 %: 0.93 to 1.10)." in said
    assert "times as fast" not in said
    assert "no clear difference" not in verdict(sides, [row(1, 0.9, 0.8, 0.97)])
    # Of a single pair nothing is known about noise.
    assert "1.02 times as fast" in verdict(sides, [row(1, 1.02, None, None)])
    runs = [run({"concurrency": at}, side=side) for at in (1, 4) for side in ("off", "auto")]
    swept = verdict(runs, [row(1, 1.5, 1.3, 1.7), row(4, 1.01, 0.9, 1.1)])
    assert "1.50 at 1, 1.01 at 4 (no clear difference) times as fast" in swept


@pytest.mark.parametrize(
    ("high", "end"),
    [
        ((2.2, 1.5, 1.1), "nowhere clearly slower up to 16 at a time."),
        ((2.2, 0.98, 0.9), "slower from 4 at a time on."),
        ((2.2, 0.98, 1.1), "slower at 4 at a time."),
    ],
)
def test_where_it_stops_paying_is_said(high: tuple[float, ...], end: str) -> None:
    rows = [row(at, each - 0.1, each - 0.2, each) for at, each in zip((1, 4, 16), high, strict=True)]
    runs = [run({"concurrency": at}, side=side) for at in (1, 4, 16) for side in ("off", "auto")]
    said = verdict(runs, rows)
    assert said.startswith(f"auto beside off: {high[0] - 0.1:.2f} at 1") and end in said


def test_nothing_sent_is_said() -> None:
    assert verdict([run({"concurrency": 1}, requests={"sent": 0, "failed": 0})], []) == "Nothing was sent."
