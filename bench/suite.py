"""The suite: runs the benchmarks of a form (bench/forms.py) one after the other on this machine.

Each part is a process of its own with an allowance that is said before it starts. A part that fails or takes longer is
told at the end, and the others run all the same. Each writes its own row; docs/results.md is made of them at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bench import regressions, results_page, rows
from bench.forms import FORMS, Part, minutes

# How long a part that is stopped has for taking down what it started.
STOPPING_SECONDS = 20.0
ENDS = {0: "every bar is met", 1: "missed a bar", 2: "failed"}
OVERRAN = 124


class Ended(NamedTuple):
    part: Part
    code: int
    seconds: float

    @property
    def how(self) -> str:
        if self.code == OVERRAN:
            return f"took longer than its {self.part.seconds} s, and was stopped"
        return ENDS.get(self.code, f"ended with {self.code}")


def main(form: str, argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m bench {form}", description="The suite of this machine.")
    parser.add_argument("--only", default="", metavar="NAMES", help="these parts alone, comma-separated")
    parser.add_argument("--no-row", action="store_true", help="print only: no rows, and docs/results.md stays")
    parser.add_argument("--arctic", default="", metavar="PYTHON", help="an interpreter that has arctic-inference")
    options = parser.parse_args(argv)
    only = [name for name in options.only.split(",") if name]
    if unknown := set(only) - {part.name for part in FORMS[form]}:
        parser.error(f"{form} has no part named {', '.join(sorted(unknown))}")
    parts = [with_flags(part, options) for part in FORMS[form] if not only or part.name in only]
    print(f"{len(parts)} parts, at most {minutes(parts)} minutes", flush=True)
    before = rows.read_all()
    ended = [one(part, start) for part in parts]
    print("\n".join(told(ended)))
    if not options.no_row:
        for line in worse_figures(before):
            print(line)
        results_page.main([])
    return int(any(each.code for each in ended))


def with_flags(part: Part, options: argparse.Namespace) -> Part:
    more = ["--no-row"] if options.no_row else []
    if part.name == "proposer" and options.arctic:
        more += ["--arctic", options.arctic]
    return part._replace(flags=" ".join([part.flags, shlex.join(more)]).strip())


def without_gpu() -> str:
    try:
        import torch
    except ImportError:
        return "there is no torch here"
    return "" if torch.cuda.is_available() else "torch sees no GPU on this machine, and nothing can stand in for one"


# Running --------------------------------------------------------------------------------------------------


def one(part: Part, begin: Callable[[Sequence[str]], subprocess.Popen[bytes]]) -> Ended:
    print(f"\n==== {shlex.join(['python', '-m', 'bench', *part.command])}: at most {part.seconds} s", flush=True)
    started = time.monotonic()
    process = begin(part.command)
    try:
        code = process.wait(part.seconds)
    except subprocess.TimeoutExpired:
        stop(process)
        code = OVERRAN
    except BaseException:
        stop(process)
        raise
    return Ended(part, code, time.monotonic() - started)


def start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """In a group of its own: what it started is found when it has to be stopped."""
    return subprocess.Popen([sys.executable, "-m", "bench", *command], cwd=rows.ROOT, start_new_session=True)


def stop(process: subprocess.Popen[bytes], seconds: float = STOPPING_SECONDS) -> None:
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# Telling --------------------------------------------------------------------------------------------------


def told(ended: Sequence[Ended]) -> list[str]:
    whole = sum(each.seconds for each in ended)
    lines = [f"{each.seconds:6.0f} s of {each.part.seconds:<5} {each.part.name:<14} {each.how}" for each in ended]
    return ["", "==== all parts", *lines, f"{whole:6.0f} s in all"]


def worse_figures(before: dict[str, list[rows.Row]]) -> list[str]:
    """Of the rows that came since."""
    found = []
    for name, now in rows.read_all().items():
        earlier = before.get(name, [])
        for at in range(len(earlier), len(now)):
            found += [f"{name}: {line}" for line in regressions.worse(name, now[at], now[:at])]
    return found
