"""Which module imports which, from source text alone: nothing is imported or run.

A path is a file's path in the repository. Imports within functions and under `if TYPE_CHECKING` count like the others:
they are how a circle is usually hidden.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import PurePosixPath


@dataclass
class Module:
    """`imports`: dotted names, each possibly of a module or of something in one. `functions`: name -> lines."""

    path: str
    imports: set[str] = field(default_factory=set)
    functions: dict[str, int] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)


def read(path: str, text: str) -> Module:
    module = Module(path)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            module.imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(path, node)
            module.imports |= {f"{source}.{alias.name}" for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            # Methods of several classes share names.
            module.functions[f"{node.name}:{node.lineno}"] = (node.end_lineno or node.lineno) - node.lineno + 1
        elif isinstance(node, ast.ClassDef):
            module.classes.append(node.name)
    return module


def edges(modules: dict[str, Module]) -> dict[str, set[str]]:
    """Path -> paths it imports."""
    by_name = {_dotted(path): path for path in modules}
    return {
        path: {found for name in module.imports if (found := _resolved(name, by_name)) and found != path}
        for path, module in modules.items()
    }


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of files that reach each other: the strongly connected components of more than one (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        on_stack.add(node)
        for target in sorted(graph[node]):
            if target not in order:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in on_stack:
                low[node] = min(low[node], order[target])
        if low[node] == order[node]:
            at = stack.index(node)
            group = stack[at:]
            del stack[at:]
            on_stack.difference_update(group)
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return sorted(found)


def repeated_classes(modules: dict[str, Module]) -> dict[str, list[str]]:
    """Class name -> the paths that define it, where it is defined more than once."""
    places: dict[str, list[str]] = {}
    for path, module in modules.items():
        for name in module.classes:
            places.setdefault(name, []).append(path)
    return {name: at for name, at in places.items() if len(at) > 1}


def _absolute(path: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = PurePosixPath(path).parts[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def _dotted(path: str) -> str:
    return ".".join(PurePosixPath(path).with_suffix("").parts).removesuffix(".__init__")


def _resolved(name: str, by_name: dict[str, str]) -> str | None:
    """`a.b.c` is module a.b.c, or something that module a.b defines."""
    return by_name.get(name) or by_name.get(name.rpartition(".")[0])
