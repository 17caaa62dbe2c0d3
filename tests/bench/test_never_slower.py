"""Law 4 over HTTP: what a run of the load harness becomes, and which cells miss. Measuring needs a model."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from bench import never_slower
from bench.__main__ import parser as bench_parser
from bench.never_slower import cell, missed


def seen(ratio: float, low: float | None, high: float | None, differ: int = 0) -> dict[str, Any]:
    """What the load harness writes of two sides."""

    def run(side: str, rate: float) -> dict[str, Any]:
        times = {"p50": 0.02, "p99": 0.05}
        return {
            "side": side, "load": {"concurrency": 4}, "throughput": {"output_tokens_per_s": rate},
            "ttft_s": times, "tpot_s": times, "e2e_s": times, "requests": {"ok": 8, "failed": 0},
            "tokens": {"output": 90, "requests_without_usage": 0}, "acceptance": {"accepted_per_step": 0.5},
        }  # fmt: skip

    compared = {"throughput": {"ratio": ratio, "low": low, "high": high}, "texts": {"compared": 8, "differ": differ}}
    return {"runs": [run("off", 100.0), run("auto", 100.0 * ratio)], "comparisons": [compared]}


def test_both_sides_are_one_server_and_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[argparse.Namespace] = []
    monkeypatch.setattr(never_slower, "running_mesh", lambda **settings: nullcontext(SimpleNamespace(url="http://x")))
    monkeypatch.setattr(
        never_slower.served, "loaded", lambda name, streams, options: (asked.append(options), seen(1.2, 1.1, 1.3))[1]
    )
    figures = never_slower.measure(bench_parser("never_slower").parse_args(["--workloads=chat", "--concurrency=1"]))
    assert list(figures["cells"]) == ["chat, 1"] and [options.cold for options in asked] == [True]
    assert asked[0].served == ["label=off;url=http://x;speculation=off", "label=auto;url=http://x"]


def test_a_cell_has_both_speeds_and_their_ratio_with_its_interval() -> None:
    found = cell(seen(1.25, 1.1, 1.4))
    assert (found["off"], found["auto"], found["ratio"], found["low"], found["high"]) == (100.0, 125.0, 1.25, 1.1, 1.4)
    assert (found["texts"], found["differ"], found["failed"]) == (8, 0, 0)


def test_a_cell_misses_when_all_of_its_interval_lies_below_one() -> None:
    noise, slower = cell(seen(0.97, 0.9, 1.04)), cell(seen(0.95, 0.92, 0.97))
    assert missed({"chat, 1": noise, "chat, 16": slower}) == ["chat, 16: auto is 0.950 (0.920 to 0.970) of off"]


def test_a_cell_with_a_bar_misses_below_it() -> None:
    known = {"schemas, 1": cell(seen(1.4, 1.3, 1.5)), "schemas, 4": cell(seen(1.4, 1.3, 1.5))}
    assert missed(known) == ["schemas, 1: auto is 1.400 (1.300 to 1.500) of off"]
    assert missed({"schemas, 1": cell(seen(1.55, 1.4, 1.7))}) == []


def test_other_texts_and_a_cell_without_an_interval_are_told() -> None:
    assert missed({"edit, 1": cell(seen(1.5, 1.4, 1.6, differ=2))}) == ["edit, 1: 0 requests failed, 2 texts differ"]
    assert missed({"edit, 1": cell(seen(1.5, None, None))}) == ["edit, 1: no interval"]
