"""Law 7: bytes from outside are data: nothing that arrives is unpickled, evaluated or run.

The dynamic half (mutated frames and bodies) lives beside the code it attacks:
tests/mesh/test_zmq_transport.py and tests/services/streamer/test_fuzz.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("mesh", "services", "kernels", "models", "loadtest")

FORBIDDEN_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "__import__"}
FORBIDDEN_ATTRIBUTES = {("torch", "load"), ("numpy", "load"), ("np", "load"), ("yaml", "load"), ("os", "system")}


def sources() -> list[Path]:
    return sorted(path for package in SHIPPED for path in (ROOT / package).rglob("*.py"))


def offences(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"imports {a.name}" for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
            yield f"imports from {node.module}"
        elif isinstance(node, ast.Call):
            yield from called(node)


def called(node: ast.Call) -> Iterator[str]:
    target = node.func
    if isinstance(target, ast.Name) and target.id in FORBIDDEN_CALLS:
        yield f"calls {target.id}"
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        name = (target.value.id, target.attr)
        yield from (f"calls {'.'.join(name)}" for _ in range(name in FORBIDDEN_ATTRIBUTES))
    for keyword in node.keywords:
        if keyword.arg in {"trust_remote_code", "shell"} and not is_false(keyword.value):
            yield f"passes {keyword.arg}"


def is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_shipped_file_can_run_what_it_receives(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert list(offences(tree)) == []


@pytest.mark.parametrize(
    "planted",
    [
        "import pickle",
        "from marshal import loads",
        "eval('1')",
        "torch.load('x')",
        "f(trust_remote_code=True)",
        "run('ls', shell=True)",
    ],
)
def test_the_search_finds_a_planted_violation(planted: str) -> None:
    assert list(offences(ast.parse(planted)))
