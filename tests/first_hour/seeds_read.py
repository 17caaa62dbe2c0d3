"""The commands of seeds/ as they are on the pages, and as somebody types them here first: `specmesh up` in place of the
program that they start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from services.cli.explain_command import PROGRAMS
from services.cli.shell_words import Statement, statements

FOLDER = Path(__file__).parent / "seeds"
SEEDS = sorted(file.stem for file in FOLDER.glob("*.sh"))
LAUNCHERS = ("python", "-m", "mpirun", "paddle.distributed.launch")


def text_of(seed: str) -> str:
    return (FOLDER / f"{seed}.sh").read_text()


def words_of(seed: str) -> tuple[list[str], Mapping[str, str]]:
    """The words behind `specmesh up`, and the environment."""
    (found,) = _starts(text_of(seed))
    place = next(place for place, word in enumerate(found.words) if _program(word))
    behind = PROGRAMS[_program(found.words[place])].behind
    words = [word for word in found.words[:place] if word not in LAUNCHERS]
    return [*words, *(word for word in found.words[place + 1 :] if word not in behind)], found.environment


def _program(word: str) -> str:
    name = word.rpartition("/")[2]
    return name if name in PROGRAMS else ""


def _starts(text: str, environment: Mapping[str, str] | None = None) -> Iterator[Statement]:
    """Those that start a server, also within the word of a container's shell."""
    for found in statements(text, environment):
        if any(map(_program, found.words)):
            yield found
            continue
        for word in found.words:
            with contextlib.suppress(ValueError):
                yield from _starts(word, found.environment) if " " in word else ()
