"""Whether a head's training prompts hold any of the prompts it will be measured on.

A training prompt overlaps if its normalised text (lower case, single spaces) is that of a held-out text, or if any
twelve words in a row occur in one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

WINDOW = 12  # words


def held_out_overlap(prompts: Iterable[str], held_out: Iterable[str]) -> int:
    """The number of prompts that overlap."""
    texts: set[str] = set()
    windows: set[str] = set()
    for text in held_out:
        words = normalised(text)
        texts.add(" ".join(words))
        windows.update(_windows(words))
    return sum(_overlaps(normalised(prompt), texts, windows) for prompt in prompts)


def normalised(text: str) -> list[str]:
    return text.lower().split()


def _overlaps(words: list[str], texts: set[str], windows: set[str]) -> bool:
    return " ".join(words) in texts or any(window in windows for window in _windows(words))


def _windows(words: list[str]) -> Iterator[str]:
    return (" ".join(words[at : at + WINDOW]) for at in range(len(words) - WINDOW + 1))


def training_prompts(file: Path) -> Iterator[str]:
    """As `specmesh train-drafter --data` reads a file: a prompt a line, or JSON lines with `prompt` or `messages`, of
    which the first of the user counts."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield _prompt_of(file, line) if file.suffix == ".jsonl" else line


def _prompt_of(file: Path, line: str) -> str:
    try:
        fields: Any = json.loads(line)
        if isinstance(prompt := fields.get("prompt"), str):
            return prompt
        return str(next(each["content"] for each in fields["messages"] if each["role"] == "user"))
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise ValueError(f"{file}: a line has neither a prompt nor messages of a user") from error
