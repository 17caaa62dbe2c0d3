"""Bars of the stages on a GPU: a figure on the wrong side of one is named, whatever else the row says. What a stage
counts as the bytes of the weights is counted here by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.gpu import attention as gpu_attention
from bench.gpu import decode as gpu_decode
from bench.gpu import environment as gpu_environment
from bench.gpu import runner as gpu_runner
from bench.gpu import stage
from bench.gpu import steps as gpu_steps
from kernels import device_times, interpreter
from models.config import Fields
from models.llama import network

CPU = torch.device("cpu")


def decoded(**changes: Any) -> dict[str, Any]:
    return {"times_limit": {"batch 1": 1.2}, "rows_over_one": 1.1, "host_us": 150.0} | changes


def test_decoding_is_held_to_its_bars_strict_and_fast() -> None:
    assert gpu_decode.missed({"strict": decoded(), "fast": decoded()}) == []
    wrong = decoded(times_limit={"batch 1": 1.21}, rows_over_one=1.11, host_us=151.0)
    assert gpu_decode.missed({"strict": wrong, "fast": decoded()}) == [
        "strict: batch 1 is 1.21, the bar is 1.2",
        "strict: rows_over_one is 1.11, the bar is 1.1",
        "strict: host_us is 151.0, the bar is 150.0",
    ]
    assert len(gpu_decode.missed({"strict": decoded(), "fast": wrong})) == 3


def test_attention_is_held_to_five_queries_and_to_the_bandwidth() -> None:
    def figures(ratio: float, share: float) -> dict[str, Any]:
        return {"five_over_one": {"1 at 4096": ratio}, "of_bandwidth": {"64 at 4096": {"1 queries": share}}}

    assert gpu_attention.missed(figures(1.1, 0.75)) == []
    assert gpu_attention.missed(figures(1.2, 0.74)) == [
        "1 at 4096: 5 queries take 1.2 times as long as 1, the bar is 1.1",
        "64 at 4096: 0.74 of the bandwidth, the bar is 0.75",
    ]


def test_a_small_step_is_held_to_its_time_and_to_what_the_host_adds() -> None:
    def figures(ms: float, exposed: float) -> dict[str, Any]:
        return {"graphs": {"step_ms": {"rows 8": ms}, "exposed_ms": {"rows 1": 0.1, "rows 8": exposed}}}

    assert gpu_steps.missed(figures(0.5, 0.3)) == []
    assert gpu_steps.missed(figures(0.6, 0.4)) == [
        "rows 8 take 0.6 ms with a graph, the bar is 0.5",
        "rows 8: 0.4 ms of the host are exposed, the bar is 0.3",
    ]


def test_a_kernel_that_spills_or_is_compiled_late_is_named() -> None:
    fits = {"gemm": {"kernels": 3, "shared": 4096, "spills_in_loops": 0}, "quant": {"problem": "none"}}
    assert gpu_environment.missed(fits, 90) == ["quant: none"]
    assert gpu_environment.missed({"gemm": {"shared": 4096, "spills_in_loops": 2}}, 90) == ["gemm: 2 spills in a loop"]
    assert len(gpu_environment.missed({"gemm": {"shared": 1 << 20}}, 90)) == 1
    assert gpu_runner.missed({"compiled_late": 0}) == []
    assert gpu_runner.missed({"compiled_late": 2}) == ["2 kernels were compiled after the runner was ready"]


@pytest.mark.skipif(not interpreter.in_use(), reason="runs for real on a GPU")
def test_decoding_counts_the_weights_and_times_rows_and_the_host() -> None:
    shape = network(Fields(stage.LLAMA_8B | stage.TOY))
    figures = gpu_decode.decoded(shape, True, (1, 2), 40, 10.0, 1, CPU)
    # qkv, output, gate and up, down, a norm each twice and the last; then the head.
    assert figures["weights_gb"] == round(2 * (32 * 64 + 32 * 32 + 3 * 32 * 32 + 3 * 32 + 64 * 32) / 1e9, 3)
    assert set(figures["step_ms"]) == {"batch 1", "batch 2", "rows 8"}
    assert gpu_decode.BARS.keys() - {"batch 1"} <= figures.keys()


def test_each_call_is_timed_but_the_first() -> None:
    calls: list[None] = []
    assert len(device_times.milliseconds(lambda: calls.append(None), 3, CPU)) == 3
    assert len(calls) == 4


def test_time_in_which_two_kernels_run_counts_once() -> None:
    assert stage.covered([]) == 0.0
    assert stage.covered([(5.0, 9.0), (0.0, 2.0), (1.0, 3.0), (6.0, 7.0), (9.0, 10.0)]) == 8.0
