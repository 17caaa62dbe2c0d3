"""How a benchmark's rows are shown on docs/results.md: its module says so with `SHOWN`. Tables, and numbers in them.

A path is names joined by `>`. In that of lines a name may be a pattern (`*`, `a|b`): each figure it leads to is a line,
named after what the patterns matched. In that of a column, which starts at the line's figure, `/` goes back to the
row's figures, where `*` is the line's name. Several with `&` between are a ratio and its interval, or a range; a format
follows `:`. A list is shown as its length.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, NamedTuple

Figures = Any
SEPARATOR = ">"
MISSING = object()


class Shown(NamedTuple):
    """`columns`: headings by path; none for one a name that lines have. `named`: figures of a line that name it, too.
    `by`: figures of a row that tell its variant; of each variant the newest row is shown. `say`: what a reader needs to
    know."""

    title: str
    lines: str
    columns: Mapping[str, str] = MappingProxyType({})
    say: str = ""
    by: tuple[str, ...] = ()
    named: tuple[str, ...] = ()


class ShownLine(NamedTuple):
    name: str
    figure: Figures


# Of one, two and three figures in a cell.
FORMS = {2: "{:.2f}–{:.2f}", 3: "{:.2f} ({:.2f}–{:.2f})"}


def lines_of(shown: Shown, figures: dict[str, Any]) -> list[ShownLine]:
    """Empty where the row is of a form that is no longer known."""
    found = []
    for names, figure in _led_to(figures, shown.lines.split(SEPARATOR) if shown.lines else []):
        names += [number(at(figure, field)) for field in shown.named]
        found.append(ShownLine(", ".join(names), figure))
    known = [line for line in found if not shown.columns or any(cells(shown.columns, line, figures))]
    return [] if shown.named and any(not isinstance(line.figure, dict) for line in found) else known


def _led_to(figure: Figures, path: Sequence[str]) -> Iterator[tuple[list[str], Figures]]:
    if not path:
        yield [], figure
        return
    is_list = isinstance(figure, list)
    items = enumerate(figure) if is_list else figure.items() if isinstance(figure, dict) else ()
    for name, each in items:
        if any(fnmatchcase(str(name), pattern) for pattern in path[0].split("|")):
            for names, found in _led_to(each, path[1:]):
                # A place in a list names nothing.
                yield ([str(name)] if not is_list and set("*|") & set(path[0]) else []) + names, found


def at(figure: Figures, path: str) -> Figures:
    """MISSING where it leads nowhere."""
    for name in filter(None, path.split(SEPARATOR)):
        try:
            figure = figure[int(name)] if isinstance(figure, list) else figure[name]
        except (KeyError, IndexError, TypeError, ValueError):
            return MISSING
    return figure


def cells(columns: Iterable[str], line: ShownLine, figures: dict[str, Any]) -> list[str]:
    """"" where there is no such figure."""
    return [_cell(column, line, figures) for column in columns]


def _cell(column: str, line: ShownLine, figures: dict[str, Any]) -> str:
    paths, _, form = column.partition(":")
    found = []
    for path in paths.split("&"):
        start, path = (figures, path[1:].replace("*", line.name)) if path.startswith("/") else (line.figure, path)
        value = at(start, path)
        # A row of an older form may have something else there.
        if value is MISSING or value is None or isinstance(value, dict):
            return ""
        found.append(len(value) if isinstance(value, list) else value)
    if len(found) > 1:
        return FORMS[len(found)].format(*found)
    return format(found[0], form) if form else number(found[0])


def of_names(lines: Sequence[ShownLine]) -> dict[str, str]:
    """A column for each name."""
    return {name: name for line in lines for name in line.figure}


# Text -----------------------------------------------------------------------------------------------------


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Empty where there are no lines."""
    if not lines:
        return ""
    return "\n".join(
        ["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *("| " + " | ".join(line) + " |" for line in lines)]
    )


def number(value: Any) -> str:
    """As a reader wants it: three or four digits, thousands apart; nothing measured is a dash."""
    if value is None or value is MISSING:
        return "–"
    if isinstance(value, (str, bool)):
        return str(value)
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 100 else f"{value:.3g}"


def wrapped(part: str, indent: str = "") -> str:
    """Prose in lines of the pages' width. `indent`: of an item's further lines."""
    return textwrap.fill(part, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
