"""Compiled parts of ops have names of their own.

Code kept on disk is linked by the names of functions. Two kinds of numbers compiled in two processes, from parts of
the same name, would both run the parts that the third process loads first.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import numba.core.dispatcher
import pytest

import kernels
from kernels.cpu_program import Native

MODULES = [
    module.name
    for package in pkgutil.iter_modules(kernels.__path__, "kernels.")
    if package.ispkg
    for module in pkgutil.iter_modules(importlib.import_module(package.name).__path__, f"{package.name}.")
    if module.name.rsplit(".", 1)[1].startswith("cpu")
]
Dispatcher = numba.core.dispatcher.Dispatcher


def referred(function: Any) -> Iterator[Any]:
    """What a function's code reads from its module and from the functions around it."""
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield function.__globals__[name]
    for cell in function.__closure__ or ():
        yield cell.cell_contents


def parts(function: Any, found: dict[int, Any]) -> dict[int, Any]:
    """All compiled functions that a function calls, and those they call."""
    for value in referred(function):
        if isinstance(value, Dispatcher) and id(value) not in found:
            found[id(value)] = value
            parts(value.py_func, found)
    return found


def constants(part: Any) -> Any:
    """What tells two functions of the same text apart."""
    cells = [cell.cell_contents for cell in part.py_func.__closure__ or ()]
    return part.py_func.__code__, [constants(each) if isinstance(each, Dispatcher) else each for each in cells]


def ops_of(name: str) -> list[Native]:
    return [value for value in vars(importlib.import_module(name)).values() if isinstance(value, Native)]


def test_there_are_ops_to_look_at() -> None:
    assert len(MODULES) >= 4
    assert sum(len(ops_of(name)) for name in MODULES) > 20


def test_parts_of_the_same_name_are_the_same_code() -> None:
    named: dict[tuple[str, str], Any] = {}
    for module in MODULES:
        for op in ops_of(module):
            for part in parts(op.function, {}).values():
                name = (part.py_func.__module__, part.py_func.__qualname__)
                assert named.setdefault(name, constants(part)) == constants(part), name


@pytest.mark.parametrize("module", MODULES)
def test_ops_hold_no_compiled_parts_of_their_own(module: str) -> None:
    """Such an op would be compiled again by every process: the parts are new objects each time."""
    for op in ops_of(module):
        assert op.function.__closure__ is None, op.function.__qualname__


def test_ops_made_inside_functions_are_not_kept_in_tables() -> None:
    for name in MODULES:
        for table in vars(importlib.import_module(name)).values():
            if isinstance(table, dict):
                for value in table.values():
                    assert not isinstance(value, Native) or value.function.__closure__ is None
