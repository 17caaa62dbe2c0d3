"""Which kernels run is decided once, by name, and said."""

from __future__ import annotations

import pytest
import torch

from kernels import interpreter
from kernels.dispatch import CannotRun, choose

# The interpreter is on where there is no GPU (tests/conftest.py).
interpreted = pytest.mark.skipif(not interpreter.in_use(), reason="a GPU is here")


@interpreted
def test_on_a_cpu_auto_means_the_references_and_says_why() -> None:
    choice = choose("cpu")
    assert choice.implementation == "reference" and "only when asked for" in choice.why
    assert choice.operation("kv_store").__name__ == "kernels.kv_store.reference"


@interpreted
def test_the_interpreter_runs_the_fused_kernels_when_asked() -> None:
    choice = choose("cpu", "fused")
    assert choice.implementation == "fused" and "interpreted" in choice.why
    assert choice.operation("kv_store").__name__ == "kernels.kv_store.fused"


def test_what_cannot_run_is_refused_and_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(interpreter.SWITCH, raising=False)
    with pytest.raises(CannotRun, match="no GPU kernels for a cpu device"):
        choose("cpu", "fused")
    assert choose("cpu").why == "plain torch on cpu: no GPU kernels for a cpu device"


@interpreted
def test_a_gpu_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(interpreter.SWITCH)
    with pytest.raises(CannotRun, match="torch sees no GPU"):
        choose(torch.device("cuda"), "fused")


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(CannotRun, match=r"'fast'.*auto, fused and reference"):
        choose("cpu", "fast")
