"""Sizes, and which launches may share a compiled kernel: exactly those that Triton itself compiles alike."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from kernels import interpreter
from kernels.ahead_of_time import compilations
from kernels.interpreter import SWITCH
from kernels.launch import ceil_div, kind, launch, power_of_two

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
print(json.dumps([repr(native_specialize_impl(type(backend), value, False, False, False)) for value in values]))
"""


def test_numbers_that_kernels_are_not_specialised_for_are_of_one_kind_to_triton_too() -> None:
    values = [0, 1, 2, 5, 16, 17, 32, 48, 4096, -16, -3, 2**31 - 1]
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    asked = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(values)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    theirs = json.loads(asked.stdout.splitlines()[-1])
    assert len(set(map(kind, values))) == len(set(theirs)) == 1
    with pytest.raises(AssertionError, match="int32"):
        kind(2**31)


def test_no_kernel_is_specialised_for_a_number_that_is_not_a_constant() -> None:
    """Or the rows of a step would compile it anew."""
    seen = set()
    for each in compilations(80):
        free = getattr(each.kernel, "kwargs", {}).get("do_not_specialize") or getattr(
            each.kernel, "do_not_specialize", []
        )
        numbers = [name for name, kind in each.signature.items() if kind in ("i32", "i64")]
        assert set(numbers) <= set(free or ()), each.name
        seen.update(numbers)
    assert {"rows", "width", "splits", "pairs", "count"} <= seen


# Kernels compiled for a GPU that isn't there, by the path of one that is.
COMPILE = """
import json, sys, threading
from types import SimpleNamespace
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit
from kernels import launch
from kernels.norm_rope_act import fused

driver.set_active(SimpleNamespace(
    get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0,
    get_current_stream=lambda device: 0,
))
launch._architecture = lambda device: 90
compiler, threads = triton.compiler.compile, []

def compile(*given, **more):
    threads.append(threading.current_thread().name)
    if len(sys.argv) > 1:
        raise RuntimeError("a kernel that can't be compiled")
    return compiler(*given, **more)

triton.compiler.compile = compile

def norm(width):
    fused.add_norm(torch.zeros(2, width), None, torch.zeros(width), 1e-5, torch.bfloat16)

with launch.only_compiling():
    for width in (64, 128, 64):
        norm(width)
    with launch.only_compiling():
        norm(256)
    waiting = [type(compiled).__name__ for compiled, _ in launch._compiled.values()]
found = [(type(compiled).__name__, bool(compiled.asm["cubin"])) for compiled, _ in launch._compiled.values()]
compiled_then = len(threads)
with launch.only_compiling():
    norm(64)
print(json.dumps([waiting, found, compiled_then, len(threads), sum(name == "MainThread" for name in threads)]))
"""


def compiled_for_a_gpu(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    return subprocess.run(
        [sys.executable, "-c", COMPILE, *arguments], cwd=ROOT, env=environment | {"TRITON_CACHE_DIR": str(cache)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_what_is_compiled_before_it_is_needed_is_compiled_side_by_side(tmp_path: Path) -> None:
    done = compiled_for_a_gpu(tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    waiting, found, then, in_the_end, in_main = json.loads(done.stdout)
    assert waiting == ["FutureKernel"] * 3 and found == [["CompiledKernel", True]] * 3
    # Each once, by other threads.
    assert (then, in_the_end, in_main) == (3, 3, 0)


def test_a_kernel_that_cannot_be_compiled_says_so_before_it_is_needed(tmp_path: Path) -> None:
    done = compiled_for_a_gpu(tmp_path, "fail")
    assert done.returncode == 1 and "RuntimeError: a kernel that can't be compiled" in done.stderr


@pytest.mark.skipif(not interpreter.in_use(), reason="about the interpreter")
def test_functions_that_a_kernel_calls_cost_the_interpreter_no_look_through_the_language(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from triton.runtime import interpreter as tritons

    looks: list[str] = []
    look = tritons._patch_builtin

    def noted(package: object, *rest: object) -> None:
        looks.append(str(package))
        look(package, *rest)

    monkeypatch.setattr(tritons, "_patch_builtin", noted)
    x = torch.arange(6.0)
    launch(nested_kernel, (2,), x)
    once = len(looks)
    launch(nested_kernel, (6,), x)
    assert once and len(looks) <= 2 * once
    assert x.tolist() == [4.0, 5.0, 4.0, 5.0, 6.0, 7.0]
    # And the language is as it was.
    assert tl.core.is_builtin(tl.load)


@pytest.mark.skipif(not interpreter.in_use(), reason="about the interpreter")
def test_types_that_the_interpreter_keeps_are_those_it_would_make_anew() -> None:
    from triton.runtime import interpreter as tritons

    launch(nested_kernel, (1,), torch.arange(6.0))
    kinds = [tl.int1, tl.uint8, tl.int32, tl.int64, tl.float16, tl.bfloat16, tl.float32, tl.pointer_type(tl.float32)]
    expected = ["bool", "uint8", "int32", "int64", "float16", "uint16", "float32", "uint64"]
    for _ in range(2):
        for shape in ([], [4], [1, 4], [4, 1]):
            types = [tl.block_type(each, [tl.constexpr(size) for size in shape]) if shape else each for each in kinds]
            assert [tritons._get_np_dtype(each).name for each in types] == expected
            for each, kind_of in zip(types, kinds, strict=True):
                tensor = tl.tensor(None, each)
                assert tensor.type is each and tensor.dtype is kind_of
                assert [size.value for size in tensor.shape] == shape and tensor.numel.value == math.prod(shape)
                assert not shape or (each.element_ty is kind_of and each.shape.values == shape)


@triton.jit
def plus_two(x):
    return tl.maximum(plus_one(plus_one(x)), 0.0)


@triton.jit
def plus_one(x):
    return x + 1.0


@triton.jit
def nested_kernel(x):
    at = x + tl.program_id(0)
    tl.store(at, plus_two(tl.load(at)))
