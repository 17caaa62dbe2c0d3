"""What the agent is asked to do: sessions of steps, drawn from a seed. Knows no server.

The user asks for one step at a time and an example shows how it is done, because a small model follows long plans
badly. Which tool is called, and with what, is the model's own.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from loadtest.workloads.agent.project import FILES, NAME

SYSTEM = "You are an agent that works on a small project in Python. You call the tool that the user asks for."
# How it is done, with a file that the project doesn't have: what is asked, tool, arguments, result.
_BEFORE = "GREETING = 'Good day'\n\n\ndef greet(who):\n    print(GREETING)\n    return GREETING + ' ' + who\n"
_AFTER = "def greet(name):\n    print(GREETING)\n    return GREETING + ' ' + name"
EXAMPLE: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    (f"Read the file {NAME}/greetings.py.", "read_file", {"path": f"{NAME}/greetings.py"}, _BEFORE),
    (f"Replace lines 4 to 6 of {NAME}/greetings.py, the function greet: in it who is called name, and nothing else "
     "changes.", "replace_lines", {"path": f"{NAME}/greetings.py", "first": 4, "last": 6, "new": _AFTER},
     f"lines 4 to 6 of {NAME}/greetings.py are replaced"),
    ("Search for GREETING.", "search", {"text": "GREETING"}, f"{NAME}/greetings.py:1: GREETING = 'Good day'"),
    ("Calculate what 7 articles at 1250 cents cost.", "calculate", {"expression": "7 * 1250"}, "8750"),
)  # fmt: skip
LEAST_LINES = 3  # of a function
NEW_NAMES = ("found", "result", "entry", "amount", "given", "chosen", "known", "current", "held", "wanted")


class Step(NamedTuple):
    """`calls`: the answer must be a call; otherwise it must be text."""

    says: str
    calls: bool = True


class Function(NamedTuple):
    path: str
    name: str
    first: int
    last: int
    source: str


def session(number: int) -> list[Step]:
    """One function of the project gets another name inside it."""
    draw = random.Random(f"agent {number}")
    found = list(_functions())
    function = found[number % len(found)]
    old = draw.choice(_names(function.source))
    new = draw.choice([name for name in NEW_NAMES if name not in function.source])
    lines = f"lines {function.first} to {function.last} of {function.path}"
    count, price = draw.randrange(2, 60), draw.randrange(100, 9000)
    return [
        Step(f"In the function {function.name} we want to call {old} {new}. List the files of the folder {NAME}."),
        Step(f"Read the file {function.path}."),
        Step(f"Search for {old}."),
        Step(f"Replace {lines}, the function {function.name}: in it {old} is called {new}, and nothing else changes."),
        Step(f"Calculate what {count} articles at {price} cents cost."),
        Step("Say in a few sentences what was done.", calls=False),
    ]


def _functions() -> Iterator[Function]:
    for path, text in FILES.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                source = ast.unparse(node)
                if source.count("\n") + 1 >= LEAST_LINES and _names(source):
                    yield Function(path, node.name, node.lineno, node.end_lineno, source)


def _names(source: str) -> list[str]:
    """Names of arguments and variables, but self."""
    tree = ast.parse(source)
    found = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    found |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return sorted(found - {"self"})
