"""What `specmesh top` shows: the body of /v1/mesh as lines for a terminal of a given size. Pure: no clock, no terminal.

On a narrow terminal a table loses its least important columns; on a low one the last lines are left out, and the last
line says how many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from services.cli.chat_drafts import RESET, in_one_line

Body = dict[str, Any]

BOLD, FAINT = "\x1b[1m", "\x1b[2m"
GREEN, YELLOW, RED = "\x1b[32m", "\x1b[33m", "\x1b[31m"
STATES = {"ready": GREEN, "starting": YELLOW, "draining": YELLOW, "stuck": RED, "gone": FAINT}
# In the order in which a request meets them.
ROLES = ("streamer", "tokenizer", "worker", "proposer")
GAP = "  "
BAR = 20
LEAST_WIDTH = 20


@dataclass(frozen=True, slots=True)
class TableCell:
    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """`keep`: if the columns don't fit, those with the lowest value are dropped first."""

    title: str
    keep: int
    cell: Callable[[Body], TableCell]
    right: bool = True


@dataclass(frozen=True, slots=True)
class TableLine:
    """Pieces of text with their styles; a line is cut at the screen's edge before it gets its styles. No text commands
    the terminal."""

    cells: tuple[TableCell, ...]

    def drawn(self, width: int, *, colours: bool) -> str:
        parts, left = [], width
        for cell in self.cells:
            text = in_one_line(cell.text)[:left]
            left -= len(text)
            parts.append(f"{cell.style}{text}{RESET}" if colours and cell.style and text else text)
        return "".join(parts).rstrip()


def plain(text: str, style: str = "") -> TableLine:
    return TableLine((TableCell(text, style),))


def screen(body: Body | None, where: str, width: int, height: int, *, colours: bool, trouble: str = "") -> list[str]:
    """As many lines as there are, `height` at most. `trouble`: why the body is old, or missing."""
    width = max(width, LEAST_WIDTH)
    lines = [_head(body, where, trouble)]
    if body is not None:
        body = {**body, "members": in_order(body["members"])}
        lines += table(MEMBERS, body["members"], width)
        lines += [plain(""), *_figures(body, width)]
        lines += _sources(body, width)
        lines += _lines(body, width)
    while lines and not lines[-1].cells[0].text:
        lines.pop()
    if len(lines) > height > 1:
        left_out = len(lines) - height + 1
        lines = [*lines[: height - 1], plain(f"… {left_out} more lines: make the terminal higher", FAINT)]
    return [line.drawn(width, colours=colours) for line in lines[: max(height, 1)]]


def _head(body: Body | None, where: str, trouble: str) -> TableLine:
    if trouble:
        return TableLine((TableCell(f"{where}: ", BOLD), TableCell(trouble, RED)))
    assert body is not None
    members = [member for member in body["members"] if member["state"] != "gone"]
    bad = [member for member in members if member["state"] != "ready"]
    said = f"{len(members)} processes, all ready" if not bad else f"{len(members)} processes, {len(bad)} not ready"
    # The column is among the first that a narrow terminal loses.
    restarts = sum(member["restarts"] for member in members)
    said += f", restarts {restarts}" * bool(restarts)
    demo = ", demo" if body["demo"] else ""
    return TableLine((TableCell(f"{where}: ", BOLD), TableCell(said, YELLOW if bad else ""), TableCell(demo)))


# Members ------------------------------------------------------------------------------------------------------------


def _state(member: Body) -> TableCell:
    return TableCell(member["state"], STATES.get(member["state"], RED))


def _figure(member: Body, name: str, digits: int = 0) -> TableCell:
    value = member["figures"].get(name)
    return TableCell("" if value is None else number(value, digits))


MEMBERS = (
    Column("ROLE", 9, lambda m: TableCell(f"{m['role']} {m.get('phase', '')}".rstrip()), right=False),
    Column("INSTANCE", 7, lambda m: TableCell(m["instance"]), right=False),
    Column("STATE", 10, _state, right=False),
    Column("SINCE", 4, lambda m: TableCell(age(m["since_s"]))),
    Column("QUEUE", 6, lambda m: TableCell(number(m["queue"]))),
    Column("RUNNING", 5, lambda m: _figure(m, "running")),
    Column("TOKENS/S", 8, lambda m: _figure(m, "tokens_per_s", 1)),
    Column("RESTARTS", 3, lambda m: TableCell(number(m["restarts"]), YELLOW if m["restarts"] else "")),
    Column("HEARD", 2, lambda m: TableCell(f"{m['heard_ago_s']:.1f}s")),
    Column("PID", 1, lambda m: TableCell(str(m["pid"]))),
    Column("WHY", 0, lambda m: TableCell("; ".join(m["reasons"])), right=False),
)


def in_order(members: Iterable[Body]) -> list[Body]:
    return sorted(members, key=_place)


def _place(member: Body) -> tuple[int, str]:
    role = member["role"]
    return ROLES.index(role) if role in ROLES else len(ROLES), member["instance"]


def table(columns: Sequence[Column], rows: Sequence[Body], width: int) -> list[TableLine]:
    """The rows under their titles; columns without a word in any row are left out, then those that don't fit."""
    cells = {column.title: [column.cell(row) for row in rows] for column in columns}
    kept = [column for column in columns if any(cell.text for cell in cells[column.title])]
    wide = {each.title: max(len(each.title), *(len(cell.text) for cell in cells[each.title])) for each in kept}
    while len(kept) > 1 and sum(wide[each.title] for each in kept) + len(GAP) * (len(kept) - 1) > width:
        kept.remove(min(kept, key=lambda column: column.keep))

    def line(of: Sequence[TableCell]) -> TableLine:
        padded: list[TableCell] = []
        for column, cell in zip(kept, of, strict=True):
            text = cell.text.rjust(wide[column.title]) if column.right else cell.text.ljust(wide[column.title])
            padded += [TableCell(GAP if padded else ""), TableCell(text, cell.style)]
        return TableLine(tuple(padded))

    titles = line([TableCell(column.title, BOLD) for column in kept])
    return [titles, *(line([cells[column.title][at] for column in kept]) for at in range(len(rows)))]


# Figures ------------------------------------------------------------------------------------------------------------

# The text of each figure; figures that the table has are left out.
FIGURES: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("accepted_per_step", lambda value: f"{value:.2f} accepted a step"),
    ("steps_per_s", lambda value: f"{number(value, 1)} steps/s"),
    ("prompt_tokens_per_s", lambda value: f"{number(value, 1)} prompt tokens/s"),
    ("kv_used", lambda value: f"KV {value:.0%} used"),
    ("kv_cached", lambda value: f"{value:.0%} cached"),
    ("max_sequences", lambda value: f"room for {number(value)}"),
    ("batches_per_s", lambda value: f"{number(value, 1)} questions/s"),
    ("drafted_per_s", lambda value: f"{number(value, 1)} draft tokens/s"),
    ("text_tokens", lambda value: f"follows {number(value)} tokens"),
    ("store_tokens", lambda value: f"learned {number(value)} tokens"),
    ("connections", lambda value: f"{number(value)} connections"),
)


def _figures(body: Body, width: int) -> list[TableLine]:
    lines: list[TableLine] = []
    longest = max((len(member["instance"]) for member in body["members"]), default=0)
    for member in body["members"]:
        figures = member["figures"]
        said = [say(figures[name]) for name, say in FIGURES if name in figures]
        if said and member["state"] != "gone":
            lines += paragraph(member["instance"].ljust(longest) + GAP, said, width)
    return lines


def paragraph(begin: str, items: Iterable[str], width: int) -> list[TableLine]:
    """Items behind a word, and on further lines under each other where they don't fit."""
    lines, text = [], begin
    for item in items:
        joined = text + ("" if text in (begin, " " * len(begin)) else ", ") + item
        # With room for the comma that may follow.
        if len(joined) >= width and text != begin:
            lines.append(plain(text + ","))
            joined = " " * len(begin) + item
        text = joined
    return [*lines, plain(text)]


SOURCES = (
    Column("DRAFTS FROM", 9, lambda s: TableCell(s["name"]), right=False),
    Column("ACCEPTED (10 s) / DRAFTED", 8, lambda s: TableCell(of(s["accepted_lately"], s["drafted_lately"]))),
    Column("", 3, lambda s: TableCell(bar(s["accepted_lately"], s["drafted_lately"]), GREEN), right=False),
    Column("ACCEPTED (TOTAL) / DRAFTED", 7, lambda s: TableCell(of(s["accepted"], s["drafted"]))),
)


def _sources(body: Body, width: int) -> list[TableLine]:
    """Of all workers together."""
    together: dict[str, Body] = {}
    for source in (source for member in body["members"] if member["state"] != "gone" for source in member["sources"]):
        name = source["name"]
        before = together.setdefault(name, {"name": name})
        for what in ("drafted", "accepted", "drafted_lately", "accepted_lately"):
            before[what] = before.get(what, 0) + source[what]
    rows = sorted(together.values(), key=lambda source: (-source["accepted_lately"], -source["accepted"]))
    return [plain(""), *table(SOURCES, rows, width)] if rows else []


def _lines(body: Body, width: int) -> list[TableLine]:
    said = []
    for link in body["links"]:
        trip = "" if link["round_trip_ms"] is None else f"{link['round_trip_ms']:.1f} ms"
        said.append(f"{link['from']} → {link['to']} {trip if link['open'] else 'closed'}".rstrip())
    return [plain(""), *paragraph("lines: ", said, width)] if said else []


# Numbers ------------------------------------------------------------------------------------------------------------


def number(value: float, digits: int = 0) -> str:
    """The number with about four digits: 12, 1.5, 1234, 12.3k, 4.56M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            scaled = value / (1e3 if unit == "k" else size)
            return f"{scaled:.3g}{unit}" if scaled < 100 else f"{scaled:.0f}{unit}"
    return f"{value:.{digits if abs(value) < 100 else 0}f}"


def age(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole // 60 % 60:02}m"
    return f"{whole // 86400}d{whole // 3600 % 24:02}h"


def share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def of(part: float, whole: float) -> str:
    return f"{number(part)} / {number(whole)} {share(part, whole):>5}"


def bar(part: float, whole: float) -> str:
    return "█" * round(BAR * min(1.0, part / whole)) if whole else ""
