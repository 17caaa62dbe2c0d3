"""Commands and snippets as they stand in pages: what is in fences, what is marked, what is said in passing.

Knows Markdown as far as our pages use it; knows nothing of what the commands do.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELLS = ("console", "bash", "sh")

# Before a fence, in a comment of its own: why nothing here runs it. Another comment is no reason.
MARK = re.compile(
    r"needs (?:a GPU|docker)|a sketch|"
    r"(?:takes minutes: )?run by (?P<by>tests/\S+\.py)(?:: (?:file|row) \S+(?: before \".*\")?)?"
)


@dataclass(frozen=True)
class Block:
    """What stands in one fence."""

    page: str  # its path from the project's root
    line: int  # of the fence, from 1
    language: str
    text: str
    mark: str = ""

    @property
    def commands(self) -> list[str]:
        return list(commands_of(self.text)) if self.language in SHELLS else []

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """In order. Raises ValueError for a fence that doesn't end."""
    opened: tuple[int, str, str] | None = None
    held: list[str] = []
    mark = ""
    for number, line in enumerate(text.splitlines(), 1):
        if opened is None and (fence := re.fullmatch(r"```(\w*)", line)):
            opened, held = (number, fence[1], mark), []
        elif opened and line == "```":
            yield Block(page, opened[0], opened[1], "\n".join(held), opened[2])
            opened, mark = None, ""
        elif opened:
            held.append(line)
        elif comment := re.fullmatch(r"<!-- (.*) -->", line):
            mark = comment[1]
        elif line:
            mark = ""
    if opened:
        raise ValueError(f"{page}:{opened[0]}: the fence doesn't end")


def blocks() -> list[Block]:
    return [each for page in PAGES for each in blocks_of(str(page.relative_to(ROOT)), page.read_text())]


def commands_of(text: str) -> Iterator[str]:
    """Behind each `$ `, with the lines that it goes on in; the rest is what was printed."""
    command = ""
    for line in text.splitlines():
        if command:
            command += "\n" + line
        elif line.startswith("$ "):
            command = line[2:]
        if command and is_whole(command):
            yield command
            command = ""
    if command:
        raise ValueError(f"a command doesn't end: {command}")


def is_whole(command: str) -> bool:
    if command.endswith("\\"):
        return False
    try:
        shlex.split(command)
    except ValueError:
        return False
    return True


def programs_of(command: str) -> list[str]:
    """The program of each part of a pipe or a list, without the variables set for it."""
    words = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars="|&;<>")
    words.whitespace_split = True
    found: list[str] = []
    begins = True
    for word in words:
        if word in ("|", "&&", ";", "||"):
            begins = True
        elif begins and not re.match(r"[A-Z_]+=", word):
            found.append(word)
            begins = False
    return found


def said_in_passing(text: str) -> Iterator[str]:
    """Code within lines, outside of fences."""
    outside = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for span in re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", outside):
        yield " ".join(span.split())
