"""docs/results.md and its pictures, made from the rows of bench/results/ and nothing else, and the blocks of
figures in README.md and pages of docs/ (bench/results_in_pages.py).

    python -m bench results            makes them; the suite does so at its end
    python -m bench results --check    changes nothing, and exits 1 when they are behind the rows
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from bench import forms, results_in_pages, rows
from bench.results_of_acceptance import ACCEPTANCE
from bench.results_of_compare import COMPARE
from bench.results_of_gpu import GPU
from bench.results_of_mesh import MESH
from bench.results_of_models import MODELS
from bench.results_of_several import SEVERAL
from bench.rows import Hardware, Row

DOCS = rows.ROOT / "docs"
HELP = "makes docs/results.md and its pictures from the rows in bench/results/"
PAGE, PICTURES = "results.md", "pictures"
SECTIONS = (*MODELS, *ACCEPTANCE, *MESH, *SEVERAL, *GPU, *COMPARE)

ABOUT = """# Results

What the benchmarks saw, made from the rows in [bench/results/](../bench/results/) by `python -m bench results`: nothing
here is written by hand. Under each table stand the date, the commit, the machine, the share of its cores that was busy
before the benchmark began (in older rows the load average, which counts the benchmark itself), and the command.

`make bench` measures this machine anew and makes this page: {short} minutes at most on two cores. `make bench
ARGS=full` is the long form, {full} minutes at most: every method with 1 to 32 requests at a time, faults, a restart.
`make bench-gpu` has the stages of a GPU, {on_gpu} minutes at most ([gpu.md](gpu.md)).

Of each benchmark the newest rows are shown that together hold all of its figures; a row may be older than what has
changed since: its commit says so. The load generator runs on the same cores as what it loads. Machines differ from day
to day, so a ratio within a table says more than figures of two. A figure that is worse than in the row before it, of
the same machine and command, by more than two runs of the same code differ, is named under its table.
"""
NO_GPU = """## GPU

Not run on a GPU: there is no row of one. `make bench-gpu` measures them ([gpu.md](gpu.md)).
"""


def main(argv: Sequence[str], docs: Path = DOCS, results: Path = rows.RESULTS) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench results", description=HELP)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 when it is behind")
    options = parser.parse_args(argv)
    all_rows = rows.read_all(results)
    files = made(all_rows) | results_in_pages.made(docs, all_rows)
    old = {str(path.relative_to(docs)) for path in (docs / PICTURES).glob("results-*.svg")} - set(files)
    behind = [name for name, text in files.items() if not same(docs / name, text)]
    if options.check:
        print("\n".join(f"{name} is behind the rows: python -m bench results" for name in [*behind, *sorted(old)]))
        return int(bool(behind or old))
    for name in behind:
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        (docs / name).write_text(files[name])
    for name in old:
        (docs / name).unlink()
    pictures = sum(name.endswith(".svg") for name in files)
    print(f"{docs / PAGE}: {pictures} pictures, {len(behind)} files were behind")
    return 0


def same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


def made(all_rows: dict[str, list[Row]]) -> dict[str, str]:
    """Files under docs/: the page and its pictures."""
    files: dict[str, str] = {}
    minutes = {form: forms.minutes(parts) for form, parts in forms.FORMS.items()}
    chapters = [chapter(machine, name, all_rows, files) for machine, name in slugs(machines(all_rows)).items()]
    if not any(gpu for *_, gpu in machines(all_rows)):
        chapters.append(NO_GPU)
    files[PAGE] = "\n".join([ABOUT.format(**minutes), *chapters])
    return files


def machines(all_rows: dict[str, list[Row]]) -> list[Hardware]:
    """Those without a GPU first, and of them that with the most rows."""
    found = [rows.machine(row) for own in all_rows.values() for row in own]
    return sorted(set(found), key=lambda machine: (bool(machine[-1]), -found.count(machine), machine))


def slugs(found: Sequence[Hardware]) -> dict[Hardware, str]:
    """What the pictures of each machine are named after; machines that differ in little get numbers."""
    names: dict[Hardware, str] = {}
    for machine in found:
        cpu, cores, _, gpu = machine
        name = re.sub(r"[^a-z0-9]+", "-", f"{cpu} {cores} {gpu}".lower()).strip("-")
        taken = sum(each == name or each.startswith(f"{name}-no") for each in names.values())
        names[machine] = f"{name}-no{taken + 1}" if taken else name
    return names


def chapter(machine: Hardware, slug: str, all_rows: dict[str, list[Row]], files: dict[str, str]) -> str:
    cpu, cores, features, gpu = machine
    own = {name: [row for row in found if rows.machine(row) == machine] for name, found in all_rows.items()}
    newest = max((row for found in own.values() for row in found), key=lambda row: str(row["date"]))
    said = [f"{newest['hardware']['memory_gb']} GB", ", ".join(features)]
    text = [f"## {cpu}, {cores} cores" + (f", {gpu}" if gpu else ""), f"{'; '.join(filter(None, said))}.\n"]

    def place(name: str) -> str:
        return f"{PICTURES}/results-{slug}-{name}.svg"

    for make in SECTIONS:
        if (section := make(own)) is not None:
            text.append(section.made(place) + "\n")
            files.update({place(name): drawn for name, drawn in section.pictures.items()})
    return "\n".join(text)
