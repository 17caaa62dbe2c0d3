"""What the benchmark reads of a vLLM with our drafts. Real servers are measured, not tested."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from bench import served
from bench.__main__ import parser as bench_parser
from bench.oracles import vllm_drafter
from loadtest.flags import parser as load_parser
from loadtest.flags import plan_of
from loadtest.server_metrics import parse

COUNTED = """
vllm:generation_tokens_total{engine="0"} %d
vllm:time_to_first_token_seconds_count{engine="0"} %d
vllm:inter_token_latency_seconds_count{engine="0"} %d
specmesh:guest_steps_total{engine="vllm-a"} %d
specmesh:guest_seconds_total{engine="vllm-a"} %f
specmesh:guest_waited_seconds_total{engine="vllm-a"} %f
"""


def test_a_cell_has_what_vllm_and_the_drafter_counted_meanwhile() -> None:
    before, after = parse(COUNTED % (100, 4, 40, 10, 1.0, 0.9)), parse(COUNTED % (300, 8, 86, 30, 1.013, 0.91))
    assert vllm_drafter.grown(before, after) == {"tokens_per_step": 4.0, "own_ms": 0.15, "waited_ms": 0.5}
    # Another engine at this proposer has ended meanwhile.
    others = {(name, labels.replace("-a", "-b")): value for (name, labels), value in before.items() if labels}
    assert vllm_drafter.grown(before | others, after)["own_ms"] == 0.15
    assert vllm_drafter.grown({}, {}) == {"tokens_per_step": None, "own_ms": None, "waited_ms": None}


def line(server: str, high: float, **more: Any) -> dict[str, Any]:
    compared = {} if server == "suffix" else {"of_first": {"ratio": high - 0.1, "low": high - 0.2, "high": high}}
    return {"server": server, "concurrency": 16, "own_ms": None, "failed": 0} | compared | more


def test_bars_are_missed_where_the_whole_interval_lies_below_a_step_takes_too_long_or_a_request_failed() -> None:
    chat = [line("suffix", 0), line("off", 0.5), line("cold", 1.01, own_ms=0.19), line("warm", 0.99, own_ms=0.21)]
    agent = [line("suffix", 0), line("cold", 1.1), line("warm", 1.1), line("shared", 1.1, failed=1)]
    assert vllm_drafter.missed({"sides": ["suffix"], "chat": chat, "agent": agent}) == [
        "chat, 16, warm: 0.89 of vLLM's suffix decoding, bar 1.0",
        "chat, 16, warm: 0.21 ms a step, bar 0.2",
        "agent, 16, warm: 1.0 of vLLM's suffix decoding, bar 1.2",
        "agent, 16, shared: 1 requests failed",
    ]
    # Against another side they say nothing.
    assert vllm_drafter.missed({"sides": ["off"], "chat": [line("off", 0), line("warm", 0.5)]}) == []


@pytest.mark.parametrize(("sides", "said"), [("off,magic", "no side magic"), ("off", "no .*/bin/vllm")])
def test_what_it_cannot_run_it_says(tmp_path: Path, sides: str, said: str) -> None:
    if "magic" in sides:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "vllm").touch()
    with pytest.raises(SystemExit, match=said):
        vllm_drafter.measure(Namespace(vllm=tmp_path, sides=sides, model="smollm2-135m-instruct"))


@pytest.mark.parametrize("workload", ["edit", "agent"])
def test_what_a_side_was_taught_are_all_requests_that_the_sides_get(workload: str) -> None:
    options = bench_parser("vllm_drafter").parse_args(["--vllm=x", "--tokens=9", "--cold"])
    options.served = ["label=off;url=http://127.0.0.1:1", "label=warm;url=http://127.0.0.1:2"]
    lesson = load_parser().parse_args(vllm_drafter.lesson(workload, "http://127.0.0.1:2", options)[2:])
    taught = plan_of(lesson)
    for streams in (1, 4, 16):
        asked = plan_of(load_parser().parse_args(served.command(workload, streams, options)[2:]))
        assert asked.arrivals.requests <= taught.arrivals.requests
        assert asked.workload.session(2) == taught.workload.session(2)
        assert (asked.ask.max_tokens, asked.cold) == (taught.ask.max_tokens, taught.cold) == (9, True)
    assert len(taught.workload.session(2).turns) == (4 if workload == "agent" else 1)
    assert lesson.url_flag == "http://127.0.0.1:2" and not taught.sides
