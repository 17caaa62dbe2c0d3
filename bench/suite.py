"""The suite: runs the benchmarks of a form one after the other on this machine, each in a process of its own.

What a part found is on disk when it ends: its figures are a row of its own. A part that fails, crashes or hangs is told
at the end, and the next one begins. `on_gpu` is the form for the first minutes on a machine with a GPU, torch, triton
and little else: it has a time limit for all parts, and says in on_gpu.jsonl how each ended. Rows can be put elsewhere
and be copied to bench/results. Its dry run computes toys in Triton's interpreter, without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from bench import rows

SHORT, FULL, ON_GPU = "short", "full", "on_gpu"


class SuitePart(NamedTuple):
    name: str
    flags: str
    seconds: int  # allowance

    @property
    def command(self) -> list[str]:
        return [self.name, *shlex.split(self.flags)]


FORMS: dict[str, tuple[SuitePart, ...]] = {
    # All that a change may make worse, in a quarter of an hour on two cores.
    SHORT: (
        SuitePart("engine", "--turns 20", 50),
        SuitePart("engine", "--turns 20 --dtype int8", 50),
        SuitePart("verify", "--turns 5", 80),
        SuitePart("proposer", "--tokens 300000 --replayed 8 --kind-tokens 40000 --kind-replayed 6", 95),
        SuitePart("step_overhead", "--steps 150 --rounds 4", 65),
        SuitePart("mesh", "--seconds 8", 65),
        SuitePart("never_slower", "--workloads chat,edit --concurrency 1,4 --requests 10 --waves 4", 350),
        SuitePart("serving", "--rounds 2", 45),
        SuitePart("peers", "--rounds 1 --tokens 64", 60),
    ),
    # What docs/results.md is best made of.
    FULL: (
        SuitePart("engine", "", 60),
        SuitePart("engine", "--dtype int8", 60),
        SuitePart("verify", "", 150),
        SuitePart("proposer", "", 900),
        SuitePart("step_overhead", "", 180),
        SuitePart("mesh", "", 120),
        SuitePart("serving", "", 180),
        SuitePart("never_slower", "", 2400),
        SuitePart("faults", "--workloads chat --waves 24", 700),
        SuitePart("offline", "", 420),
        SuitePart("peers", "", 240),
        SuitePart("peers", "--dtype int8 --without 'transformers, prompt lookup'", 180),
    ),
    # In order of worth. What is wrong isn't worth timing: first the kernels are held to their references there, and the
    # texts to each other.
    ON_GPU: (
        SuitePart("parity", "--seconds 125", 130),
        SuitePart("gpu_law3", "--tokens 128", 50),
        SuitePart("gpu_decode", "", 40),
        SuitePart("gpu_http", "--seconds 85", 100),
        SuitePart("gpu_prefill", "", 25),
        SuitePart("gpu_attention", "", 15),
        SuitePart("gpu_peer", "--seconds 45", 55),
        SuitePart("gpu_verify", "", 35),
        SuitePart("gpu_layers", "", 30),
        SuitePart("gpu_steps", "", 20),
        SuitePart("gpu_runner", "", 15),
        SuitePart("gpu_environment", "--compile-seconds 15", 25),
    ),
}
# Of all stages on a GPU.
MINUTES = 9.0
LEFT_OUT, OVERRAN = 3, 124
ENDS = {0: "every bar is met", 1: "missed a bar", 2: "failed", LEFT_OUT: "left out", OVERRAN: "was stopped: too long"}
# How long a part that is stopped has for taking down what it started; with less left, a stage isn't begun.
STOPPING_SECONDS, LEAST_SECONDS = 10.0, 5.0
SAID_LINES = 15
# A dry run is for any machine, and the interpreter is slow: times of all limits.
DRY_SLACK = 12

Begin = Callable[[Sequence[str], IO[bytes] | None], "subprocess.Popen[bytes]"]


class LeftOut(SystemExit):
    """Ends a benchmark that can't run here, with the reason: nothing failed."""


class StageEnd(NamedTuple):
    part: SuitePart
    code: int
    seconds: float
    said: str

    def __str__(self) -> str:
        return f"{self.seconds:6.0f} s of {self.part.seconds:<5} {self.part.name:<16} {self.how}"

    @property
    def how(self) -> str:
        return f"died of signal {-self.code}" if self.code < 0 else ENDS.get(self.code, f"ended with {self.code}")


def minutes(parts: Sequence[SuitePart]) -> int:
    return -(-sum(part.seconds for part in parts) // 60)


def main(form: str, argv: Sequence[str]) -> int:
    options = parser(form).parse_args(argv)
    if form == ON_GPU and not options.dry_run and (why := without_gpu()):
        print(f"bench {ON_GPU}: {why}", file=sys.stderr)
        return 2
    parts = chosen(form, options.only)
    print(f"{len(parts)} parts, at most {minutes(parts)} minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="dry-run-") as scratch:
        # Figures of toys are no results.
        folder = options.results or (Path(scratch) if options.dry_run else rows.RESULTS)
        ended = run(form, parts, folder, options)
    print("\n".join(["", "==== all parts", *map(str, ended), f"{sum(each.seconds for each in ended):6.0f} s in all"]))
    if folder == rows.RESULTS and not options.no_row:
        make_page()
    return int(any(each.code not in (0, LEFT_OUT) for each in ended))


def parser(form: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=f"python -m bench {form}", description="The suite of this machine.")
    made.add_argument("--only", default="", metavar="NAMES", help="these parts alone, comma-separated")
    made.add_argument("--no-row", action="store_true", help="print only: no rows, and docs/results.md stays")
    made.add_argument("--results", type=Path, metavar="DIR", help="where rows go (default: bench/results)")
    made.set_defaults(dry_run=False, resume=False, arctic="", minutes=MINUTES)
    if form == ON_GPU:
        made.add_argument("--resume", action="store_true", help="not what ended on this commit and machine already")
        made.add_argument("--minutes", type=float, help=f"for all of them (default: {MINUTES:g})")
        made.add_argument("--dry-run", action="store_true", help="toy sizes in the interpreter: figures mean nothing")
    else:
        made.add_argument("--arctic", metavar="PYTHON", help="an interpreter that has arctic-inference")
    return made


def chosen(form: str, only: str) -> list[SuitePart]:
    names = [name for name in only.split(",") if name]
    if unknown := set(names) - {part.name for part in FORMS[form]}:
        raise SystemExit(f"{form} has no part named {', '.join(sorted(unknown))}")
    return [part for part in FORMS[form] if not names or part.name in names]


def without_gpu() -> str:
    try:
        import torch
    except ImportError:
        return "there is no torch here"
    return "" if torch.cuda.is_available() else "torch sees no GPU on this machine, and nothing can stand in for one"


def make_page() -> None:
    """Where everything is installed that a benchmark imports; rows can be carried to a machine that has it."""
    try:
        from bench import results_page

        results_page.main([])
    except ImportError as missing:
        print(f"docs/results.md isn't made here ({missing}): `python -m bench results` makes it elsewhere")


# Running --------------------------------------------------------------------------------------------------


def run(form: str, parts: Sequence[SuitePart], folder: Path, options: argparse.Namespace) -> list[StageEnd]:
    done = already(folder) if options.resume else set()
    slack = DRY_SLACK if options.dry_run else 1
    end = time.monotonic() + slack * 60 * (options.minutes if form == ON_GPU else minutes(parts) + 1)
    ended = []
    for part in parts:
        if part.name in done:
            print(f"==== {part.name}: ended before, see {ON_GPU}.jsonl", flush=True)
            continue
        limit = min(float(slack * part.seconds), end - time.monotonic() - STOPPING_SECONDS)
        command = [*part.command, *more_flags(part, folder, options)]
        print(f"\n==== python -m bench {shlex.join(command)}: at most {max(0.0, limit):.0f} s", flush=True)
        one = run_part(part, command, limit, start_dry if options.dry_run else start, keep=form == ON_GPU)
        print(f"{one.said}\n{one}" if one.said else str(one), flush=True)
        ended.append(one)
        if form == ON_GPU and not options.no_row:
            figures = {"stage": part.name, "code": one.code, "how": one.how, "seconds": round(one.seconds, 1)}
            lines = [] if one.code in (0, 1) else one.said.splitlines()[-SAID_LINES:]
            rows.append(ON_GPU, [part.name], {**figures, "said": lines, "dry_run": options.dry_run}, folder)
    return ended


def more_flags(part: SuitePart, folder: Path, options: argparse.Namespace) -> list[str]:
    found = [] if folder == rows.RESULTS else ["--results", str(folder.absolute())]
    found += ["--no-row"] * options.no_row + ["--dry-run"] * options.dry_run
    return found + (["--arctic", options.arctic] if part.name == "proposer" and options.arctic else [])


def already(folder: Path) -> set[str]:
    """Stages that ended by themselves on the commit and machine of this call."""
    here = (rows.commit(), rows.hardware().get("gpu", ""))
    return {
        row["figures"]["stage"]
        for row in rows.read(ON_GPU, folder)
        if (row["commit"], row["hardware"].get("gpu", "")) == here and row["figures"]["code"] in (0, 1)
    }


def run_part(part: SuitePart, command: Sequence[str], limit: float, begin: Begin, keep: bool) -> StageEnd:
    """`keep`: what it said, which is printed at its end."""
    if limit < min(LEAST_SECONDS, part.seconds):
        return StageEnd(part, LEFT_OUT, 0.0, "there is no time left")
    started = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = begin(command, said if keep else None)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            stop(process)
            code = OVERRAN
        except BaseException:
            stop(process)
            raise
        said.seek(0)
        return StageEnd(part, code, time.monotonic() - started, said.read().decode(errors="replace").strip())


def start(command: Sequence[str], said: IO[bytes] | None, **environment: str) -> subprocess.Popen[bytes]:
    """In a group of its own: what it started is found when it has to be stopped."""
    return subprocess.Popen(
        [sys.executable, "-m", "bench", *command], cwd=rows.ROOT, start_new_session=True, stdin=subprocess.DEVNULL,
        stdout=said, stderr=said and subprocess.STDOUT, env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment,
    )  # fmt: skip


def start_dry(command: Sequence[str], said: IO[bytes] | None) -> subprocess.Popen[bytes]:
    return start(command, said, TRITON_INTERPRET="1")


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOPPING_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
