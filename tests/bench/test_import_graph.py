"""Imports, circles and repeated names, from source text."""

from __future__ import annotations

from bench.import_graph import circles, edges, read, repeated_classes


def graph(**files: str) -> dict[str, set[str]]:
    paths = {f"{name.replace('__', '/')}.py": text for name, text in files.items()}
    return edges({path: read(path, text) for path, text in paths.items()})


def test_a_name_is_a_module_or_something_in_one() -> None:
    found = graph(a__b="", a__c="def f(): ...", d="import a.b\nfrom a import b\nfrom a.c import f\nimport json\n")
    assert found["d.py"] == {"a/b.py", "a/c.py"}


def test_a_package_is_its_init() -> None:
    modules = {path: read(path, text) for path, text in {"a/__init__.py": "", "b.py": "import a"}.items()}
    assert edges(modules)["b.py"] == {"a/__init__.py"}


def test_relative_imports_are_found() -> None:
    found = graph(a__b="", a__c="from . import b\nfrom .b import f", a__d__e="from ..b import f")
    assert found["a/c.py"] == found["a/d/e.py"] == {"a/b.py"}


def test_imports_that_are_hidden_count() -> None:
    late = "def f():\n    import b"
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a"
    assert circles(graph(a=late, b=typed)) == [["a.py", "b.py"]]


def test_circles_are_told_apart_and_a_chain_is_none() -> None:
    found = graph(a="import b", b="import c", c="import a", d="import e", e="import d", f="import a", g="import f")
    assert circles(found) == [["a.py", "b.py", "c.py"], ["d.py", "e.py"]]


def test_functions_have_lengths_and_methods_count() -> None:
    module = read("a.py", "def f():\n    pass\n\nclass A:\n    async def f(self):\n        x = 1\n        return x\n")
    assert list(module.functions.values()) == [2, 3] and module.classes == ["A"]


def test_repeated_classes_say_where() -> None:
    modules = {path: read(path, "class A: ...\nclass B: ...") for path in ("a.py", "b.py")} | {
        "c.py": read("c.py", "class C: ...")
    }
    assert repeated_classes(modules) == {"A": ["a.py", "b.py"], "B": ["a.py", "b.py"]}
