"""A file, and its revisions: the answer repeats all of it with one name changed, or a text with its typing errors
corrected. Functions and prose of Python's library.
"""

from __future__ import annotations

import ast
import importlib.util
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.workloads.prose import TOPICS, paragraphs

MODULES = (
    "ast", "base64", "bdb", "calendar", "colorsys", "compileall", "contextlib", "copy", "csv", "difflib", "dis",
    "doctest", "filecmp", "fileinput", "fnmatch", "ftplib", "functools", "gettext", "glob", "gzip", "heapq", "inspect",
    "linecache", "locale", "mimetypes", "ntpath", "pkgutil", "platform", "posixpath", "pprint", "random", "shutil",
    "statistics", "string", "tempfile", "textwrap", "tokenize", "trace", "types", "webbrowser", "zipfile",
)  # fmt: skip
SHORTEST, LONGEST = 400, 1500  # characters of a function
OFTEN = 3
EVERY_PROSE = 4
MAX_TOKENS = 320


def requests(count: int, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(f"edit {seed}")
    sources, topics = _sources(), list(TOPICS)
    chance.shuffle(sources)
    chance.shuffle(topics)
    found = []
    for number in range(count):
        if number % EVERY_PROSE == EVERY_PROSE - 1:
            found.append(_corrected(topics[number // EVERY_PROSE % len(topics)], chance))
        else:
            found.append(_renamed(*sources[(number - number // EVERY_PROSE) % len(sources)]))
    return found


def _sources() -> list[tuple[str, str, str]]:
    """Module, a function's source, and a parameter of it that it names often."""
    found = []
    for module in MODULES:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            text = Path(spec.origin).read_text(encoding="utf-8")
            found += [(module, source, name) for source, name in _functions(text)]
    return found


def _functions(text: str) -> Iterator[tuple[str, str]]:
    for node in ast.parse(text).body:
        source = (ast.get_source_segment(text, node) or "") + "\n"
        if isinstance(node, ast.FunctionDef) and SHORTEST <= len(source) <= LONGEST:
            names = [each.arg for each in node.args.args if len(each.arg) > 2]
            counts = {name: len(re.findall(rf"\b{name}\b", source)) for name in names}
            if often := [name for name, count in counts.items() if count >= OFTEN]:
                yield source, max(often, key=lambda name: counts[name])


def _renamed(module: str, source: str, name: str) -> dict[str, Any]:
    comment, wanted = f"# From the module {module}.\n", f"given_{name}"
    begins = re.sub(rf"\b{name}\b", wanted, source).splitlines()[0]
    return _revisions(
        source, comment + source, "a comment says where it comes from", f"{name} is called {wanted}", comment + begins
    )


def _corrected(topic: str, chance: random.Random) -> dict[str, Any]:
    text = "\n\n".join(paragraphs(topic, 1200)) + "\n"
    words = text.split(" ")
    for at in chance.sample(range(12, len(words)), min(6, len(words) - 12)):
        if len(words[at]) > 4 and words[at].isalpha():
            words[at] = words[at][:2] + words[at][3] + words[at][2] + words[at][4:]
    wrong = " ".join(words)
    title = f"About {topic}\n\n"
    return _revisions(
        wrong, title + wrong, "it has a title", "typing errors are corrected", title + " ".join(words[:8])
    )


def _revisions(first: str, second: str, was: str, wanted: str, begins: str) -> dict[str, Any]:
    prompt = (
        "A file and its revisions. Each is the whole file.\n\n"
        f'<revision number="1">\n{first}</revision>\n\n'
        f'<revision number="2" change="{was}">\n{second}</revision>\n\n'
        f'<revision number="3" change="{wanted}">\n{begins}'
    )
    return {"prompt": prompt, "max_tokens": MAX_TOKENS, "stop": ["</revision>"], "temperature": 0}
