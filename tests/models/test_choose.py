"""Which executor is taken: the one that was asked for, or the fastest that there is, and why not a faster one."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from models import choose as choosing
from models.choose import ExecutorChoice, choose
from models.cpu.executor import CpuExecutor
from models.plain import PlainExecutor
from models.sources import ModelError

NETWORK: Any = SimpleNamespace()
NO_GPU = "there is no GPU that torch can use"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the executors of this machine say to any network: nothing, so they run it. No GPU."""
    says = {"triton": NO_GPU, "compiled": "", "plain": ""}
    monkeypatch.setattr(choosing, "_why_not", lambda name, network, dtype: says[name])
    monkeypatch.setattr(choosing.interpreter, "in_use", lambda: False)
    return says


def test_without_a_gpu_the_compiled_loops_are_the_fastest() -> None:
    choice = choose("auto", NETWORK, "bfloat16")
    assert (choice.name, choice.executor, choice.because) == ("compiled", CpuExecutor, "")


def test_why_a_faster_one_was_not_taken_is_said(machine: dict[str, str]) -> None:
    machine["compiled"] = "head_dim 2048: too wide"
    choice = choose("auto", NETWORK, "bfloat16")
    assert (choice.name, choice.executor) == ("plain", PlainExecutor)
    assert choice.because == "compiled: head_dim 2048: too wide"


def test_a_gpu_that_cannot_be_used_is_said(machine: dict[str, str]) -> None:
    machine["triton"] = "triton is not installed"
    choice = choose("auto", NETWORK, "bfloat16")
    assert (choice.name, choice.because) == ("compiled", "triton: triton is not installed")


def test_what_is_asked_for_is_taken_though_there_are_faster_ones() -> None:
    choice = choose("plain", NETWORK, "float32")
    assert (choice.name, choice.executor, choice.because) == ("plain", PlainExecutor, "")


def test_what_is_asked_for_and_cannot_be_had_ends_the_start(machine: dict[str, str]) -> None:
    machine["compiled"] = "no int4"
    with pytest.raises(ModelError, match="executor compiled: no int4"):
        choose("compiled", NETWORK, "bfloat16")
    with pytest.raises(ModelError, match="no GPU"):
        choose("triton", NETWORK, "bfloat16")


def test_tritons_interpreter_runs_only_when_the_executor_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing.interpreter, "in_use", lambda: True)
    assert choose("triton", NETWORK, "float32").name == "triton"
    assert choose("auto", NETWORK, "float32").name == "compiled"
    with pytest.raises(ModelError, match="computes in"):
        choose("triton", NETWORK, "int4")


def test_where_nothing_runs_it_all_reasons_are_said(machine: dict[str, str]) -> None:
    machine |= {"compiled": "too wide", "plain": "int8 is not for plain"}
    with pytest.raises(ModelError, match=r"triton: there is no GPU.*compiled: too wide; plain: int8 is not"):
        choose("auto", NETWORK, "int8")


def test_a_machine_has_a_gpu_only_with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choosing._no_gpu() == NO_GPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert choosing._no_gpu() == "triton is not installed"
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    assert choosing._no_gpu() == ""


def test_a_drafters_network_is_in_8_bits_beside_bfloat16_on_compiled_loops() -> None:
    compiled, plain = ExecutorChoice("compiled", None, ""), ExecutorChoice("plain", None, "")
    assert compiled.drafting_dtype("bfloat16") == "int8"
    assert compiled.drafting_dtype("float32") == "float32", "who asks for float32 gets it everywhere"
    assert plain.drafting_dtype("bfloat16") == "bfloat16", "it has no 8 bits"
