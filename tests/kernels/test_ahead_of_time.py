"""Every fused kernel compiles for every architecture we name, with no GPU in the machine, and fits it."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.ahead_of_time import ARCHITECTURES, OPERATIONS, SHARED_LIMIT, compilations
from kernels.interpreter import SWITCH

ROOT = Path(__file__).resolve().parent.parent.parent


@functools.cache
def facts(arch: int) -> list[dict]:
    """In a process of its own: in this one, kernels may be defined for the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    done = subprocess.run(
        [sys.executable, "-m", "kernels.ahead_of_time", str(arch)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def facts_of(operation: str) -> list[dict]:
    names = {compilation.name for compilation in compilations(90, [operation])}
    return [fact for fact in facts(90) if fact["name"] in names]


# 64 rows of 512 sums are half of all the registers there are: what else the loop needs goes out to the cache and back.
WIDE_SUMS = 100


@pytest.mark.shows("other NVIDIA GPUs: sm_80 (A100), sm_90 (H100), sm_100 (B200)", "compiled")
# Of the fast tests, the one that has run us.
@pytest.mark.parametrize(
    "arch", [each if each == 90 else pytest.param(each, marks=pytest.mark.slow) for each in ARCHITECTURES]
)
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
