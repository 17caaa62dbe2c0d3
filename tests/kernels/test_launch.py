"""Sizes, and which launches may share a compiled kernel: exactly those that Triton itself compiles alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from kernels.interpreter import SWITCH
from kernels.launch import ceil_div, kind, power_of_two

ROOT = Path(__file__).resolve().parent.parent.parent


def test_powers_of_two_hold_what_they_are_asked_to() -> None:
    assert [power_of_two(n) for n in (0, 1, 2, 3, 64, 65)] == [1, 1, 2, 4, 64, 128]
    assert power_of_two(5, 16) == 16


def test_division_rounds_up() -> None:
    assert [ceil_div(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_a_pointer_between_multiples_of_16_is_of_another_kind() -> None:
    whole = torch.zeros(32, dtype=torch.float32)
    assert kind(whole) == kind(whole[4:]) != kind(whole[1:])
    assert kind(whole) != kind(whole.to(torch.float16))


# Triton's own specialisation of each value, asked in a process where kernels aren't interpreted.
ASK = """
import json, sys
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton._C.libtriton import native_specialize_impl
backend = CUDABackend(GPUTarget("cuda", 90, 32))
values = json.loads(sys.argv[1])
print(json.dumps([repr(native_specialize_impl(type(backend), value, False, True, True)) for value in values]))
"""


def test_integers_are_of_one_kind_only_if_triton_specialises_them_alike() -> None:
    values = [0, 1, 2, 5, 16, 17, 32, 48, 4096, -16, -3, 2**31 - 1, 2**31, 2**31 + 16, 2**40, 2**40 + 1, True, False]
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    asked = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(values)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    theirs = json.loads(asked.stdout.splitlines()[-1])
    for one, its in zip(values, theirs, strict=True):
        for other, others in zip(values, theirs, strict=True):
            if kind(one) == kind(other):
                assert its == others, (one, other)
