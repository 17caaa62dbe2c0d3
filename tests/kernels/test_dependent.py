"""A kernel may be started before the one in front of it has ended only if it waits before it touches memory. What the
compiler makes of that is in test_ahead_of_time.py."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import triton

import kernels
from kernels import launch
from kernels.gemm.fused import linear_kernel
from kernels.interpreter import SWITCH

WAIT = "wait_for_kernel_before"
# What may come before: it touches no memory that a kernel writes.
BEFORE = ("start_next_early", "prefetch_weight", "num_programs", "program_id", "to")


def _started() -> list[Any]:
    """Every kernel of the project, by its name."""
    found = {}
    root = Path(kernels.__file__).parent
    for path in sorted(root.glob("*/*.py")):
        if "@triton.jit" in path.read_text():
            module = importlib.import_module(".".join(["kernels", *path.relative_to(root).with_suffix("").parts]))
            found |= {
                f"{path.parent.name} {name}": each for name, each in vars(module).items() if name.endswith("_kernel")
            }
    return [pytest.param(each, id=name) for name, each in found.items()]


@pytest.mark.parametrize("kernel", _started())
def test_a_kernel_that_waits_does_so_on_every_path_and_before_it_touches_memory(kernel: Any) -> None:
    [function] = ast.parse(inspect.getsource(kernel.fn)).body
    assert isinstance(function, ast.FunctionDef)
    waits = [number for number, line in enumerate(function.body) if ast.unparse(line) == f"{WAIT}()"]
    assert len(waits) == ast.unparse(function).count(f"{WAIT}()") == launch._waits(kernel)
    for line in function.body[: waits[0]] if waits else []:
        nodes = list(ast.walk(line))
        called = {ast.unparse(node.func).rpartition(".")[2] for node in nodes if isinstance(node, ast.Call)}
        assert called <= set(BEFORE) and not any(isinstance(node, (ast.Return, ast.For, ast.While)) for node in nodes)


@triton.jit
def eager_kernel():
    pass


def test_only_kernels_that_wait_are_started_early() -> None:
    assert launch._waits(linear_kernel) and not launch._waits(eager_kernel)


# Kernels as bench gpu_ahead measures them, in a process where kernels aren't interpreted.
OTHERWISE = """
from dataclasses import replace
from kernels.ahead_of_time import compilations, compile_for
from kernels.dependent import Starts, otherwise
[linear] = [each for each in compilations(90, ["gemm"]) if each.name == "linear fp32 4096 in ranges"]
for starts in (Starts(), Starts(early="none", ahead=0), Starts(ahead=0), Starts(early="all"), Starts(ahead=65536)):
    print(*compile_for(replace(linear, kernel=otherwise(linear.kernel, starts)), 90).beginning, sep=", ")
"""


@pytest.mark.slow
def test_a_kernel_can_be_compiled_without_what_it_does_before_it_waits() -> None:
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    done = subprocess.run(
        [sys.executable, "-c", OTHERWISE], cwd=Path(kernels.__file__).parent.parent, env=environment,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    whole = "start next, prefetch, wait"
    assert done.stdout.splitlines() == [whole, "wait", "start next, wait", "prefetch, start next, wait", whole]
