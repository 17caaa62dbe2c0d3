"""A section of docs/results.md: which rows are shown, where they come from, tables. Knows nothing of any benchmark."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from bench import regressions
from bench.plot import Axis, Line, picture
from bench.rows import Row


@dataclass
class Section:
    """`pictures`: what a file is named after, its SVG. `made` puts them into the text where they are added."""

    title: str
    parts: list[str] = field(default_factory=list)
    pictures: dict[str, str] = field(default_factory=dict)

    def say(self, *parts: str) -> None:
        self.parts += [wrapped(part) for part in parts if part]

    def draw(self, name: str, title: str, x: Axis, y: Axis, lines: Sequence[Line], level: float | None = None) -> None:
        """Nothing where there are no points."""
        if any(line.points for line in lines):
            self.pictures[name] = picture(title, x, y, lines, level)
            self.parts.append(f"![{title}]({name})")

    def made(self, place: Callable[[str], str]) -> str:
        """`place`: where a picture of that name lies, seen from the page."""
        text = "\n\n".join([f"### {self.title}", *self.parts])
        for name in self.pictures:
            text = text.replace(f"]({name})", f"]({place(name)})")
        return text


def wrapped(part: str) -> str:
    """Prose in lines of the pages' width; tables, lists and sources as they are."""
    return part if part[0] in "|-*" else textwrap.fill(part, 120, break_long_words=False, break_on_hyphens=False)


def wrapped_item(text: str) -> str:
    """Of a list."""
    return textwrap.fill(
        f"- {text}", 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def covering(rows: Sequence[Row], what: Callable[[dict[str, Any]], AbstractSet[Hashable]]) -> list[Row]:
    """The newest rows that show everything: from the newest on, each that has something none before it has.

    `what`: of a row's figures, what they show; nothing where they are of a form that is no longer known.
    """
    shown: set[Hashable] = set()
    kept = []
    for row in reversed(rows):
        if own := set(what(row["figures"])) - shown:
            shown |= own
            kept.append(row)
    return kept


def source(name: str, row: Row, rows: Sequence[Row]) -> str:
    """Under a table: what its figures were measured on; and what of them got worse, and what bars they miss."""
    own = row["hardware"]
    commit = f"commit `{row['commit']}`" if row["commit"] else "no commit known"
    changed = " with changes that were not committed" if row["dirty"] else ""
    when = f"{row['date'][:10]} {row['date'][11:16]} UTC"
    machine = f"{own['cpu']}, {own['cores']} cores" + (f", {own['gpu']}" if own.get("gpu") else "")
    busy = own.get("busy_before")
    load = f"load average {own['load_average']}" if busy is None else f"{100 * busy:.0f} % busy before"
    lines = [f"*{when}, {commit}{changed}; {machine}, {load}:* `{row['command']}`"]
    lines += [f"- missed: {each}" for each in row["figures"].get("missed", [])]
    earlier = rows[: next(at for at, each in enumerate(rows) if each is row)]
    lines += [f"- {line}" for line in regressions.worse(name, row, earlier)]
    return "\n".join([lines[0], "", *lines[1:]]).strip()


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Empty where there are no lines."""
    if not lines:
        return ""
    return "\n".join(
        ["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *("| " + " | ".join(line) + " |" for line in lines)]
    )


def number(value: float | None) -> str:
    """As told of regressions; nothing measured is a dash."""
    return "–" if value is None else regressions.number(value)


def times(value: float) -> str:
    return f"{value:.2f} ×"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"
