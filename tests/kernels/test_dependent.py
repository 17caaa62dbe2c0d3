"""A kernel may be started before the one in front of it has ended only if it waits before it touches memory."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

import kernels
from kernels import launch
from kernels.gemm.fused import linear_kernel
from kernels.verify.fused_rows import scan_kernel

WAIT = "wait_for_kernel_before"


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
def test_a_kernel_that_waits_does_so_first(kernel: Any) -> None:
    [function] = ast.parse(inspect.getsource(kernel.fn)).body
    assert isinstance(function, ast.FunctionDef)
    body = function.body[1:] if ast.get_docstring(function) else function.body
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and ast.unparse(node.func) == WAIT]
    assert len(calls) == launch._waits(kernel)
    if calls:
        assert ast.unparse(body[0]) == f"{WAIT}()"


def test_only_kernels_that_wait_are_started_early() -> None:
    assert launch._waits(linear_kernel) and not launch._waits(scan_kernel)
