"""A kernel may be started before the one in front of it has ended only if it waits before it touches memory. What the
compiler makes of that is in test_ahead_of_time.py."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import triton

import kernels
from kernels import launch
from kernels.gemm.fused import linear_kernel

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
