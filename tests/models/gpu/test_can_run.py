"""Where Triton's kernels can run, and why not elsewhere."""

from __future__ import annotations

import pytest
import torch

from kernels import interpreter
from models.errors import ModelError
from models.gpu.can_run import can_run

# The interpreter is on where there is no GPU (tests/conftest.py).
interpreted = pytest.mark.skipif(not interpreter.in_use(), reason="a GPU is here")


@interpreted
def test_the_interpreter_runs_on_a_cpu_and_nowhere_else() -> None:
    assert can_run(torch.device("cpu")) == "interpreted on cpu"
    with pytest.raises(ModelError, match="runs on cpu only"):
        can_run(torch.device("cuda"))


def test_a_device_without_kernels_is_refused_with_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(interpreter.SWITCH, raising=False)
    with pytest.raises(ModelError, match="fused kernels can't run: no GPU kernels for a cpu device"):
        can_run(torch.device("cpu"))


@interpreted
def test_a_gpu_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(interpreter.SWITCH)
    with pytest.raises(ModelError, match="torch sees no GPU"):
        can_run(torch.device("cuda"))


def test_an_old_gpu_is_told_by_its_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(interpreter.SWITCH, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(ModelError, match=r"compute capability 7\.5 is under 8\.0"):
        can_run(torch.device("cuda"))
