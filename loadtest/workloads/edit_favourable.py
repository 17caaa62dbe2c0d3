"""A file and its revisions: the answer repeats the file with one name changed or with typing errors corrected. The
files are functions and prose from Python's library, chosen because a small model repeats them, and the prompt ends with
the answer's first line. It shows what drafts bring where they fit; edit.py is not chosen.
"""

from __future__ import annotations

import importlib
import inspect
import random
import re
import textwrap
from functools import cache
from typing import Any

from loadtest.workloads.prose import TOPICS, paragraphs

# Module, function, a name in it and its new name. SmolLM2-135M-Instruct repeats these completely; with other functions
# it often drifts off.
RENAMES = (
    ("heapq", "_siftup", "newitem", "moved_item"),
    ("heapq", "_siftdown", "newitem", "moved_item"),
    ("statistics", "fmean", "weights", "shares"),
    ("statistics", "covariance", "xbar", "mean_of_x"),
    ("shutil", "copyfileobj", "fsrc", "source_file"),
    ("shutil", "copymode", "follow_symlinks", "through_links"),
    ("fnmatch", "filter", "result", "matching"),
    ("base64", "b64encode", "altchars", "other_characters"),
    ("colorsys", "rgb_to_hls", "sumc", "total"),
    ("colorsys", "hsv_to_rgb", "i", "sector"),
    ("ast", "increment_lineno", "node", "tree"),
    ("difflib", "ndiff", "linejunk", "is_junk_line"),
    ("inspect", "cleandoc", "margin", "common_indent"),
    ("mimetypes", "guess_extension", "strict", "only_official"),
    ("string", "capwords", "sep", "separator"),
    ("tokenize", "untokenize", "iterable", "tokens"),
    ("urllib.parse", "urlunsplit", "components", "parts"),
    ("zipfile", "is_zipfile", "filename", "path"),
)
EVERY_PROSE = 3
MAX_TOKENS = 320


def requests(count: int, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(f"edit {seed}")
    renames, topics = list(RENAMES), list(TOPICS)
    chance.shuffle(renames)
    chance.shuffle(topics)
    found = []
    for number in range(count):
        prose, code = number // EVERY_PROSE, number - number // EVERY_PROSE
        if number % EVERY_PROSE == EVERY_PROSE - 1:
            found.append(_corrected(topics[prose % len(topics)], chance))
        else:
            found.append(_renamed(*renames[code % len(renames)], code // len(renames)))
    return found


def renames(count: int, seed: int) -> list[dict[str, Any]]:
    """Functions only."""
    functions = list(RENAMES)
    random.Random(f"edit {seed}").shuffle(functions)
    return [_renamed(*functions[at % len(functions)], at // len(functions)) for at in range(count)]


def _renamed(module: str, function: str, old: str, new: str, again: int) -> dict[str, Any]:
    """A revision that renames something in a function. `again`: the function's earlier uses."""
    source = _source(module, function)
    comment, wanted = f"# From the module {module}.\n", f"{new}_{again + 1}" if again else new
    begins = re.sub(rf"\b{old}\b", wanted, source).splitlines()[0]
    return _revisions(
        source, comment + source, "a comment says where it comes from", f"{old} is called {wanted}", comment + begins
    )


@cache
def _source(module: str, function: str) -> str:
    return textwrap.dedent(inspect.getsource(getattr(importlib.import_module(module), function)))


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
