"""The GPU's benchmark on a tiny network in the interpreter: its figures mean nothing, that they come does."""

from __future__ import annotations

import argparse

import pytest
import torch

from bench import gpu
from kernels import interpreter
from models.config import Fields
from models.llama import network

TINY = gpu.LLAMA_8B | {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(SystemExit, match="torch sees no GPU"):
        gpu.measure(argparse.Namespace(dtype="bfloat16", turns=1))


@pytest.mark.skipif(not interpreter.in_use(), reason="runs for real on a GPU")
def test_every_figure_comes_and_bars_are_held_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "ROWS", (1, 8))
    shape, cpu = network(Fields(TINY)), torch.device("cpu")
    figures = gpu.measure_executor(shape, "bfloat16", True, 10.0, 1, cpu, context=8, sequences=2)
    assert set(gpu.BARS) <= set(figures)
    # qkv, output, gate and up, down, a norm each twice and the last; then the head.
    assert figures["weights_gb"] == round(2 * (32 * 64 + 32 * 32 + 3 * 32 * 32 + 3 * 32 + 64 * 32) / 1e9, 3)
    good = {"one_row_times_floor": 1.0, "eight_rows_times_one": 1.0, "attention_of_bandwidth": 0.9, "host_us": 10.0}
    assert gpu.missed(good, "strict") == []
    assert gpu.missed(good | {"attention_of_bandwidth": 0.5}, "fast") == [
        "fast: attention_of_bandwidth is 0.5, the bar is 0.75"
    ]
