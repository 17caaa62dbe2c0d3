"""Every function at the top level of some modules of Python's library, in their order: to be repeated under another
name.

Nothing is chosen by how well a model does. The modules are listed, a function is left out for its size alone, and the
prompt is a plain chat message that begins no answer.
"""

from __future__ import annotations

import ast
import importlib.util
import random
import re
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

MODULES = (
    "base64", "bisect", "calendar", "colorsys", "copy", "fnmatch", "glob", "gzip", "heapq", "shutil", "statistics",
    "textwrap",
)  # fmt: skip
LEAST, MOST = 200, 1200  # characters of a function
MAX_TOKENS = 400
TASK = (
    "Rename the function {old} to {new}, and change nothing else. Answer with the whole function.\n\n"
    "```python\n{source}\n```"
)


def requests(count: int, seed: int) -> list[dict[str, Any]]:
    """The seed decides with which function it begins; after the last one comes the first, under yet another name."""
    known = functions()
    begin = random.Random(f"edit {seed}").randrange(len(known))
    return [_request(*known[(begin + at) % len(known)], at // len(known)) for at in range(count)]


@cache
def functions() -> list[tuple[str, str]]:
    """Name and source: the first of every module, then the second, so that few requests are of many modules."""
    by_module = [_of(module) for module in MODULES]
    return [each for row in zip_longest(*by_module) for each in row if each is not None]


def _of(module: str) -> list[tuple[str, str]]:
    """Of the file, not of the imported module: there, functions in C have taken the place of some."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    text = Path(spec.origin).read_text(encoding="utf-8")
    found = [(node.name, ast.get_source_segment(text, node) or "") for node in _nodes(text)]
    return [(name, source) for name, source in found if LEAST <= len(source) <= MOST]


def _nodes(text: str) -> list[ast.FunctionDef]:
    return [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]


def _request(name: str, source: str, again: int) -> dict[str, Any]:
    new = re.sub(r"^_*", "my_", name) + (f"_{again + 1}" if again else "")
    content = TASK.format(old=name, new=new, source=source)
    return {"messages": [{"role": "user", "content": content}], "max_tokens": MAX_TOKENS, "temperature": 0}
