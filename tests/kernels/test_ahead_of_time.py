"""Every fused kernel compiles for every architecture we name, with no GPU in the machine, and fits it."""

from __future__ import annotations

import functools
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.ahead_of_time import ARCHITECTURES, OPERATIONS, SHARED_LIMIT, _beginning, compilations
from kernels.interpreter import SWITCH
from kernels.launch import DEPENDENT_FROM

ROOT = Path(__file__).resolve().parent.parent.parent
# Processes one after the other, of which each has its time.
PARTS = 4


@functools.cache
def facts(arch: int) -> list[dict]:
    """In processes of their own: in this one, kernels may be defined for the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    lines: list[str] = []
    for first in range(PARTS):
        done = subprocess.run(
            [sys.executable, "-m", "kernels.ahead_of_time", str(arch), *OPERATIONS[first::PARTS]],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        lines += done.stdout.splitlines()
    return [json.loads(line) for line in lines]


def facts_of(operation: str) -> list[dict]:
    names = {compilation.name for compilation in compilations(90, [operation])}
    return [fact for fact in facts(90) if fact["name"] in names]


# 64 rows of 512 sums are half of all the registers there are: what else the loop needs goes out to the cache and back.
WIDE_SUMS = 100


# Of the fast tests, the one that has run us.
EACH_ARCHITECTURE = pytest.mark.parametrize(
    "arch", [each if each == 90 else pytest.param(each, marks=pytest.mark.slow) for each in ARCHITECTURES]
)


@pytest.mark.shows("other NVIDIA GPUs: sm_80 (A100), sm_100 (B200)", "compiled")
@EACH_ARCHITECTURE
def test_every_kernel_compiles_for_an_architecture_fits_it_and_keeps_its_numbers_in_registers(arch: int) -> None:
    compiled = facts(arch)
    assert compiled and len({fact["name"] for fact in compiled}) == len(compiled)
    assert [fact for fact in compiled if fact["shared"] > SHARED_LIMIT[arch]] == []
    allowed = {fact["name"]: WIDE_SUMS * fact["name"].startswith("latent attend") for fact in compiled}
    assert [fact for fact in compiled if fact["spills_in_loops"] > allowed[fact["name"]]] == []
    # Attention of 16-bit numbers multiplies on the fastest unit there is, and two programs fit beside each other.
    llama = next(fact for fact in compiled if fact["name"] == "attend llama-8b")
    assert llama["matrix_unit"] == {80: "mma", 90: "wgmma", 100: "tcgen05"}[arch]
    assert 2 * (llama["shared"] + 1024) <= SHARED_LIMIT[arch] + 1024


# What a kernel calls in its source, and how that is named in the facts.
BEGINNINGS = {"start_next_early": "start next", "prefetch_weight": "prefetch", "wait_for_kernel_before": "wait"}


@EACH_ARCHITECTURE
def test_a_kernel_starts_the_next_one_and_waits_before_it_touches_memory(arch: int) -> None:
    """In the compiled code: nothing that others write is read or written before the wait, no path leads around it and
    no loop back to it; and before sm_90 there is nothing of it."""
    kernels = {each.name: each.kernel for each in compilations(arch)}
    seen = set()
    for fact in facts(arch):
        source = inspect.getsource(kernels[fact["name"]].fn)
        begins = [name for call, name in BEGINNINGS.items() if f" {call}(" in source] if arch >= DEPENDENT_FROM else []
        assert fact["beginning"] == begins or ("wait" not in begins and fact["beginning"] == ["memory"]), fact
        seen.add(tuple(begins))
    if arch >= DEPENDENT_FROM:
        assert {("wait",), tuple(BEGINNINGS.values())} <= seen


def test_a_beginning_that_touches_memory_or_can_be_left_out_is_seen() -> None:
    wait, jump = "griddepcontrol.wait; // dummy", "@%p1 bra $L__BB0_2;"
    load, target = "ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];", "$L__BB0_2:"
    for lines, begins in (
        ((wait, load), ("wait",)),
        ((load, wait), ("memory", "wait")),
        (("cp.async.cg.shared.global [%r1], [%rd1], 0x10;", wait), ("memory", "wait")),
        (("griddepcontrol.launch_dependents;", "prefetch.global.L2 [%rd1];", wait), ("start next", "prefetch", "wait")),
        (("@%p1 bra $L__BB0_2;", "ld.param.b64 %rd1, [a];", target, wait), ("wait",)),
        ((jump, wait, target, load), ("wait", "jump")),
        ((target, wait, jump), ("wait", "jump")),
        (("@%p1 ret;", wait), ("wait", "jump")),
        ((wait, wait), ("wait", "wait")),
        ((load,), ("memory",)),
    ):
        assert _beginning("\n".join((*lines, "ret;"))) == begins, lines


def test_numbers_that_must_be_those_of_plain_torch_are_compiled_to_single_roundings() -> None:
    """kernels/verify promises the reference's integers: a fused multiply-add or a flushed small number breaks it."""
    compiled = [fact for fact in facts_of("verify") if not fact["name"].startswith("logprobs")]
    assert len(compiled) > 10 and [fact["name"] for fact in compiled if fact["inexact"]] == []
    # What is looked for is found where it is.
    rounded = [fact["inexact"] for fact in facts_of("norm_rope_act") if fact["name"].startswith("add_norm")]
    assert rounded and all(rounded)


def test_every_operation_with_a_fused_file_is_compiled() -> None:
    folders = {file.parent.name for file in (ROOT / "kernels").glob("*/fused.py")}
    assert set(OPERATIONS) == folders
