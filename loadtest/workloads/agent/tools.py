"""The agent's tools: functions on the files of a project, and how a request describes them. Knows no models."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

Files = dict[str, str]
LONGEST_RESULT = 2000
MOST_HITS = 8


class ToolFailed(Exception):
    """The arguments fit the schema and not the project; the message is the result that the model is told."""


def list_files(files: Files, folder: str) -> str:
    found = [f"{path} ({len(text.splitlines())} lines)" for path, text in sorted(files.items())
             if path.startswith(folder.rstrip("/") + "/")]  # fmt: skip
    if not found:
        raise ToolFailed(f"there is no folder {folder}")
    return "\n".join(found)


def read_file(files: Files, path: str) -> str:
    return "\n".join(_lines(files, path))


def search(files: Files, text: str) -> str:
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in sorted(files)
        for number, line in enumerate(_lines(files, path), 1)
        if text in line
    ]
    return "\n".join(found[:MOST_HITS]) or f"no line has {text}"


def replace_lines(files: Files, path: str, first: int, last: int, new: str) -> str:
    """Lines are counted from 1, and `last` is replaced, too."""
    lines = _lines(files, path)
    if not 1 <= first <= last <= len(lines):
        raise ToolFailed(f"{path} has {len(lines)} lines")
    lines[first - 1 : last] = new.splitlines()
    files[path] = "\n".join(lines) + "\n"
    return f"lines {first} to {last} of {path} are replaced"


def calculate(files: Files, expression: str) -> str:
    try:
        return str(_value(ast.parse(expression, mode="eval").body))
    except (SyntaxError, ValueError, ArithmeticError, RecursionError):
        raise ToolFailed(f"can't calculate {expression}") from None


FUNCTIONS: Mapping[str, Callable[..., str]] = {
    each.__name__: each for each in (list_files, read_file, search, replace_lines, calculate)
}


def called(files: Files, name: str, arguments: Mapping[str, Any]) -> str:
    """The result that the model is told."""
    try:
        return FUNCTIONS[name](files, **arguments)[:LONGEST_RESULT]
    except ToolFailed as failed:
        return f"error: {failed}"


def _lines(files: Files, path: str) -> list[str]:
    if path not in files:
        raise ToolFailed(f"there is no file {path}")
    return files[path].splitlines()


_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


def _value(node: ast.expr) -> float:
    """Of the four kinds of calculation, with numbers only."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        value: float = _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
        return value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    raise ValueError


# As a request has them ------------------------------------------------------------------------------------


def _described(name: str, says: str, **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties),
                  "additionalProperties": False}  # fmt: skip
    return {"type": "function", "function": {"name": name, "description": says, "parameters": parameters}}


def _text(says: str, longest: int) -> dict[str, Any]:
    return {"type": "string", "description": says, "maxLength": longest}


_PATH = _text("The file's path, with its folder", 60)
_LINE = {"type": "integer", "minimum": 1, "maximum": 400}
SCHEMAS: list[dict[str, Any]] = [
    _described("list_files", "Lists the files of a folder", folder=_text("The folder", 40)),
    _described("read_file", "Reads a file", path=_PATH),
    _described("search", "Finds all lines with a text, in all files", text=_text("What is looked for", 60)),
    _described(
        "replace_lines", "Replaces the lines from first to last, both included, with new ones", path=_PATH,
        first={**_LINE, "description": "The first line"}, last={**_LINE, "description": "The last line"},
        new=_text("The new lines, with their indentation", 700),
    ),
    _described("calculate", "Calculates with numbers", expression=_text("For example (3 + 4) * 12", 60)),
]  # fmt: skip
