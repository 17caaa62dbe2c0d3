"""The GPU's benchmark of verification on a tiny vocabulary in the interpreter: its figures mean nothing, that they come
does."""

from __future__ import annotations

import argparse

import pytest
import torch

from bench.gpu import verify as gpu_verify
from kernels import interpreter
from kernels.verify import fused, reference
from tests.kernels.verify.test_fused import told

CPU = torch.device("cpu")
SIZES = [(1, 1), (2, 2)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(SystemExit, match="torch sees no GPU"):
        gpu_verify.measure(argparse.Namespace(dtype="bfloat16", turns=1, sequences="1", drafts="4", dry_run=False))


@pytest.mark.skipif(not interpreter.in_use(), reason="runs for real on a GPU")
def test_every_kind_and_size_is_timed_and_set_beside_reading_the_logits() -> None:
    figures = gpu_verify.timed(torch.bfloat16, 64, SIZES, 1, 1.0, CPU)
    for kind in gpu_verify.RULES:
        assert set(figures["us"][kind]) == set(figures["times_floor"][kind]) == {"1 x 1", "2 x 2"}
    # Two rows of 64 numbers of two bytes, at a gigabyte a second.
    seen = figures["us"]["greedy"]["1 x 1"]
    assert figures["times_floor"]["greedy"]["1 x 1"] == pytest.approx(seen / 0.256, rel=0.01)


@pytest.mark.skipif(not interpreter.in_use(), reason="compares in the interpreter")
@pytest.mark.parametrize("kind", gpu_verify.RULES)
def test_what_is_timed_answers_as_the_reference_does(kind: str) -> None:
    copies = gpu_verify.made(torch.float32, 96, 6, CPU)
    [(logits, questions, work, needs)] = gpu_verify.prepared(copies, gpu_verify.RULES[kind], 2, 2)
    expected = told(reference.verify(logits, questions), questions)
    assert told(fused.verify(logits.clone(), questions, work, needs), questions) == expected
    assert kind != "greedy" or [accepted for _, accepted, *_ in expected] == [2, 2]


def test_bars_are_times_of_a_read_and_something_on_top() -> None:
    def figures(us: float, alone: float = 9.0) -> dict[str, dict[str, dict[str, float]]]:
        kinds = gpu_verify.BARS
        # A read of 20 us.
        return {
            "us": {kind: {"64 x 4": us, "1 x 4": alone} for kind in kinds},
            "times_floor": {kind: {"64 x 4": us / 20, "1 x 4": alone / 5} for kind in kinds},
        }

    # 64 sequences are held to 1.5 reads, or 30 us.
    assert gpu_verify.missed(figures(29.0)) == []
    assert gpu_verify.missed(figures(31.0)) == [
        f"{kind}, 64 x 4: 1.55 reads of the logits, the bar is 1.5" for kind in ("greedy", "target_match")
    ]
    assert len(gpu_verify.missed(figures(33.0))) == 4
    assert gpu_verify.missed(figures(29.0, alone=10.5)) == ["greedy, 1 x 4: 10.5 us, the bar is 10.0"]
