"""`python -m bench on_gpu`, or `make bench-gpu`: the first minutes on a machine with a GPU.

The stages of bench/forms.py, in order of worth, each a process of its own with its own time limit. What a stage found
is on disk when it ends: its figures in its own file, how it ended in on_gpu.jsonl. A stage that breaks or hangs is
told, and the next one begins. Needs Python and what the stages need: torch, triton, numpy.

    --only NAMES      these stages
    --resume          not those that on_gpu.jsonl says ended on this commit and machine
    --results DIR     rows go there (default: bench/results); copy them there from another machine
    --dry-run         toy sizes in Triton's interpreter, without a GPU: shows that all of it runs
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from bench import results_page, rows
from bench.forms import FORMS, ON_GPU, Part
from bench.suite import ENDS, OVERRAN, stop, without_gpu

NAME = "on_gpu"
MINUTES = 9.0
LEFT_OUT = 3
# How long a stage that is stopped has for taking down what it started.
STOPPING_SECONDS = 5.0
# With less left, a stage isn't begun.
LEAST_SECONDS = 5.0
SAID_LINES = 15
# A dry run is for any machine, and the interpreter is slow: times of all limits.
DRY_SLACK = 12

Begin = Callable[[Sequence[str], IO[bytes]], subprocess.Popen[bytes]]


class Ended(NamedTuple):
    part: Part
    code: int
    seconds: float
    said: str

    @property
    def how(self) -> str:
        if self.code == OVERRAN:
            return "was stopped: it took too long"
        if self.code < 0:
            return f"died of signal {-self.code}"
        return {**ENDS, LEFT_OUT: "left out"}.get(self.code, f"ended with {self.code}")


def main(argv: Sequence[str]) -> int:
    options = flags().parse_args(argv)
    if not options.dry_run and (why := without_gpu()):
        print(f"bench {ON_GPU}: {why}", file=sys.stderr)
        return 2
    stages = chosen(options)
    with tempfile.TemporaryDirectory(prefix="dry-run-") as scratch:
        # Figures of toys are no results.
        folder = options.results or (Path(scratch) if options.dry_run else rows.RESULTS)
        ended = run(stages, folder, options)
    print("\n".join(["", "==== all stages", *map(line, ended), f"{sum(e.seconds for e in ended):6.0f} s in all"]))
    if not options.dry_run and folder == rows.RESULTS:
        results_page.main([])
    return int(any(each.code not in (0, LEFT_OUT) for each in ended))


def flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m bench {ON_GPU}", description="The stages of a GPU's machine.")
    parser.add_argument("--only", default="", metavar="NAMES", help="these stages alone, comma-separated")
    parser.add_argument("--resume", action="store_true", help="not what ended on this commit and machine already")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"for all of them (default: {MINUTES:g})")
    parser.add_argument("--results", type=Path, metavar="DIR", help="where rows go (default: bench/results)")
    parser.add_argument("--dry-run", action="store_true", help="toy sizes in the interpreter: figures mean nothing")
    return parser


def chosen(options: argparse.Namespace) -> list[Part]:
    only = [name for name in options.only.split(",") if name]
    if unknown := set(only) - {part.name for part in FORMS[ON_GPU]}:
        raise SystemExit(f"{ON_GPU} has no stage named {', '.join(sorted(unknown))}")
    return [part for part in FORMS[ON_GPU] if not only or part.name in only]


def run(stages: Sequence[Part], folder: Path, options: argparse.Namespace) -> list[Ended]:
    done = already(folder) if options.resume else set()
    slack = DRY_SLACK if options.dry_run else 1
    end, ended = time.monotonic() + slack * 60 * options.minutes, []
    for part in stages:
        if part.name in done:
            print(f"==== {part.name}: ended before, see {NAME}.jsonl", flush=True)
            continue
        more = ["--results", str(folder.absolute()), *(["--dry-run"] if options.dry_run else [])]
        limit = min(float(slack * part.seconds), end - time.monotonic() - STOPPING_SECONDS)
        print(f"\n==== {part.name}: at most {max(0.0, limit):.0f} s", flush=True)
        one = stage(part, [*part.command, *more], limit, start_dry if options.dry_run else start)
        print(one.said)
        print(line(one), flush=True)
        ended.append(one)
        figures = {"stage": part.name, "code": one.code, "how": one.how, "seconds": round(one.seconds, 1)}
        lines = [] if one.code in (0, 1) else one.said.splitlines()[-SAID_LINES:]
        rows.append(NAME, [part.name], {**figures, "said": lines, "dry_run": options.dry_run}, folder)
    return ended


def already(folder: Path) -> set[str]:
    """Stages that ended by themselves on the commit and machine of this call."""
    here = (rows.commit(), rows.hardware().get("gpu", ""))
    return {
        row["figures"]["stage"]
        for row in rows.read(NAME, folder)
        if (row["commit"], row["hardware"].get("gpu", "")) == here and row["figures"]["code"] in (0, 1)
    }


def stage(part: Part, command: Sequence[str], limit: float, begin: Begin) -> Ended:
    if limit < min(LEAST_SECONDS, part.seconds):
        return Ended(part, LEFT_OUT, 0.0, "there is no time left")
    started = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = begin(command, said)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            stop(process, STOPPING_SECONDS)
            code = OVERRAN
        except BaseException:
            stop(process, STOPPING_SECONDS)
            raise
        said.seek(0)
        return Ended(part, code, time.monotonic() - started, said.read().decode(errors="replace").strip())


def start(command: Sequence[str], said: IO[bytes], **environment: str) -> subprocess.Popen[bytes]:
    """In a group of its own: what it started is found when it has to be stopped."""
    return subprocess.Popen(
        [sys.executable, "-m", "bench", *command], cwd=rows.ROOT, start_new_session=True, stdin=subprocess.DEVNULL,
        stdout=said, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment,
    )  # fmt: skip


def start_dry(command: Sequence[str], said: IO[bytes]) -> subprocess.Popen[bytes]:
    return start(command, said, TRITON_INTERPRET="1")


def line(one: Ended) -> str:
    return f"{one.seconds:6.0f} s of {one.part.seconds:<5} {one.part.name:<16} {one.how}"
