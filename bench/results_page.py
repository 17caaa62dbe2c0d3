"""docs/results.md, made from the rows of bench/results/ and nothing else, and the blocks of figures in README.md and
pages of docs/ (bench/results_in_pages.py).

    python -m bench results            makes them; the suite does so at its end
    python -m bench results --check    changes nothing, and exits 1 when they are behind the rows
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path

from bench import results_in_pages, rows
from bench.names import BENCHMARKS, load
from bench.rows import Hardware, Row
from bench.shown import Shown, at, cells, lines_of, number, of_names, table, wrapped

DOCS = rows.ROOT / "docs"
HELP = "makes docs/results.md, and the figures in README.md and other pages, from the rows in bench/results/"
PAGE = "results.md"
# Of a row's command; the row has it whole.
LONGEST_COMMAND = 64
# Of the bars that a row missed.
SHOWN_MISSES = 4
ABOUT = """# Results

Made by `python -m bench results` from the rows in [bench/results/](../bench/results/). Of each benchmark and kind of
machine the newest row from a clean tree is shown. Below its tables stand the row's date and commit, the share of all
cores that others used before it began, its words behind `python -m bench`, and bars that it missed. Machines differ
from day to day, so a ratio within a table says more than figures of two. `make bench` measures anew, and `make
bench-gpu` on a machine with a GPU.
"""


def main(argv: Sequence[str], docs: Path = DOCS, results: Path = rows.RESULTS) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench results", description=HELP)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 when it is behind")
    options = parser.parse_args(argv)
    all_rows = rows.read_all(results)
    files = {PAGE: page(all_rows)} | results_in_pages.made(docs, all_rows)
    behind = [name for name, text in files.items() if not (docs / name).exists() or (docs / name).read_text() != text]
    for name in behind:
        if options.check:
            print(f"{name} is behind the rows: python -m bench results")
        else:
            (docs / name).write_text(files[name])
    return int(options.check and bool(behind))


def page(all_rows: dict[str, list[Row]]) -> str:
    clean = {name: [row for row in found if is_clean(row)] for name, found in all_rows.items()}
    return "\n".join([ABOUT, *(chapter(machine, clean) for machine in machines(clean))])


def is_clean(row: Row) -> bool:
    return not row["dirty"] and not row["figures"].get("dry_run")


def machines(all_rows: dict[str, list[Row]]) -> list[Hardware]:
    """Those without a GPU first, and of them that with the most rows."""
    found = [rows.machine(row) for own in all_rows.values() for row in own]
    return sorted(set(found), key=lambda machine: (bool(machine[-1]), -found.count(machine), machine))


def chapter(machine: Hardware, all_rows: dict[str, list[Row]]) -> str:
    cpu, cores, features, gpu = machine
    text = [f"## {cpu}, {cores} cores" + (f", {gpu}" if gpu else ""), f"Has {', '.join(features)}."]
    for name in BENCHMARKS:
        own = [row for row in all_rows.get(name, []) if rows.machine(row) == machine]
        made = [section(shown, newest) for shown in load(name).SHOWN if (newest := of_variants(shown, own))]
        used = {id(row): row for shown in load(name).SHOWN for row in of_variants(shown, own)}
        # Rows of one commit and command say the same.
        text += [*made, "\n".join(dict.fromkeys(map(source, used.values())))] if made else []
    return "\n\n".join(text) + "\n"


def section(shown: Shown, newest: Sequence[Row]) -> str:
    found = [(row, line) for row in newest for line in lines_of(shown, row["figures"])]
    columns = shown.columns or of_names([line for _, line in found])
    # One variant needs to be named once only.
    title, named = shown.title, len(newest) > 1
    if not named and (only := variant(shown, newest[0])):
        title = f"{title} ({only})"
    lines = [
        [", ".join(filter(None, [variant(shown, row) * named, line.name])), *cells(columns, line, row["figures"])]
        for row, line in found
    ]
    # A column that nobody filled, as that of names where there is one line, would only take room.
    head = ["", *columns.values()]
    kept = [place for place in range(len(head)) if any(line[place] for line in lines)]
    made = table([head[place] for place in kept], [[line[place] or "–" for place in kept] for line in lines])
    said = [wrapped(shown.say)] if shown.say else []
    return "\n\n".join([f"### {title}", *said, made])


def of_variants(shown: Shown, own: Sequence[Row]) -> list[Row]:
    """The newest row of each that shows something."""
    return list({variant(shown, row): row for row in own if lines_of(shown, row["figures"])}.values())


def variant(shown: Shown, row: Row) -> str:
    """In words: what its figures say, or the name of one that is true."""
    values = {path: at(row["figures"], path) for path in shown.by}
    known = {path: value for path, value in values.items() if isinstance(value, (str, int)) and value}
    return ", ".join(path if value is True else number(value) for path, value in known.items())


def source(row: Row) -> str:
    """What a row was measured on, and the bars it missed."""
    busy = row["hardware"].get("busy_before")
    load = "" if busy is None else f", {busy:.0%} busy"
    command = textwrap.shorten(row["command"].removeprefix("python -m bench "), LONGEST_COMMAND, placeholder=" …")
    found = row["figures"].get("missed", [])
    missed = [f"  - missed: {each}" for each in found[:SHOWN_MISSES]]
    if (more := len(found) - SHOWN_MISSES) > 0:
        missed.append(f"  - missed: {more} more, in the row")
    return "\n".join([f"- {row['date'][:10]}, `{row['commit'][:7]}`{load}: `{command}`", *missed])
