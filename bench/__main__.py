"""`python -m bench` runs the suite of this machine (bench/suite.py); `full` and `on_gpu` are its other forms.
`python -m bench NAME [flags]` runs one benchmark, `list` lists them, `results` makes docs/results.md from all rows,
`rooms` says how large each room of the code is, `step --replay FILE` runs a worker's recorded steps again.

A benchmark prints its figures, appends them as a row to bench/results/NAME.jsonl, and tells which of them are worse
than in the row before. Exit code 1: a bar it knows was missed (`missed` in the figures); 2: it failed; 3: it
can't run here, and says why.

It needs nothing that a benchmark doesn't need itself: on a machine with a GPU there may be torch and little else.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from bench import forms, on_gpu, regressions, rows, suite
from bench.left_out import LeftOut

# Name -> its module in this folder.
BENCHMARKS = {
    "harness": "harness", "bus": "bus", "step_overhead": "step_overhead", "mesh": "mesh", "engine": "engine",
    "verify": "verify", "proposer": "proposer", "segments": "segments", "speculation": "speculation",
    "never_slower": "never_slower", "acceptance": "acceptance", "same_drafts": "oracles.same_drafts",
    "serving": "serving", "compare": "compare", "peers": "oracles.peers", "restart": "restart",
    "faults": "failures.faults", "attacks": "attacks", "same_text": "same_text", "losslessness": "losslessness",
    "parity": "gpu.parity", "gpu_environment": "gpu.environment", "gpu_law3": "gpu.law3", "gpu_steps": "gpu.steps",
    "gpu_verify": "gpu.verify", "gpu_decode": "gpu.decode", "gpu_attention": "gpu.attention",
    "gpu_runner": "gpu.runner", "gpu_prefill": "gpu.prefill", "gpu_http": "gpu.http",
    "simulate": "simulated.simulate", "failover": "failures.failover", "split": "split", "on_ray": "failures.on_ray",
    "witnesses": "oracles.witnesses",
}  # fmt: skip
NAMES = tuple(BENCHMARKS)
# Commands that leave no row, and their modules.
COMMANDS = {"results": "results_page", "rooms": "rooms", "step": "step"}
MODULES = BENCHMARKS | COMMANDS
MISSED, FAILED = 1, 2


def main(argv: list[str]) -> int:
    name, flags = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else (forms.SHORT, argv)
    if name == "list":
        return _list()
    if name in COMMANDS:
        return int(load(name).main(flags))
    if name == forms.ON_GPU:
        return on_gpu.main(flags)
    if name in forms.FORMS:
        return suite.main(name, flags)
    if name not in NAMES:
        print(f"no benchmark named {name!r}; there are {', '.join(NAMES)}", file=sys.stderr)
        return FAILED
    return _run(name, flags)


def _list() -> int:
    print("python -m bench [FORM | NAME [flags] | results | rooms | step | list]; forms of the suite:")
    for form, parts in forms.FORMS.items():
        print(f"  {form:<14} {forms.minutes(parts)} minutes at most: {', '.join(dict.fromkeys(p.name for p in parts))}")
    print("by name:")
    for name in MODULES:
        try:
            said = load(name).HELP
        except ImportError as missing:
            said = f"not here: {missing}"
        print(f"  {name:<14} {said}")
    return 0


def load(name: str) -> ModuleType:
    """Of a benchmark or a command."""
    return importlib.import_module(f"bench.{MODULES[name]}")


def _run(name: str, flags: list[str]) -> int:
    earlier = rows.read(name)
    rows.look_around()
    try:
        code = _measured(name, flags)
    except SystemExit as ended:
        # A sentence why it can't run; the others come from argparse.
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
            return on_gpu.LEFT_OUT if isinstance(ended, LeftOut) else FAILED
        raise
    except Exception:
        traceback.print_exc()
        return FAILED
    for row in rows.read(name)[len(earlier) :]:
        for line in regressions.worse(name, row, earlier):
            print(line)
    return code


def _measured(name: str, flags: list[str]) -> int:
    module = load(name)
    own: Callable[[list[str]], int | None] | None = getattr(module, "main", None)
    if own is not None:
        return int(own(flags) or 0)
    options = parser(name, module).parse_args(flags)
    print(f"== {name}", flush=True)
    figures = module.measure(options)
    print(json.dumps(figures, indent=2))
    # Figures of a dry run are no results.
    if not options.no_row and not (figures.get("dry_run") and options.results == rows.RESULTS):
        rows.append(name, [name, *without_results(flags)], figures, options.results)
    for missed in figures.get("missed", []):
        print(f"MISSED {name}: {missed}")
    return MISSED if figures.get("missed") else 0


def parser(name: str, module: ModuleType) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=f"python -m bench {name}", description=module.HELP)
    made.add_argument("--no-row", action="store_true", help="print only, append no row")
    made.add_argument("--results", type=Path, default=rows.RESULTS, metavar="DIR", help="the row's folder")
    module.flags(made)
    return made


def without_results(flags: list[str]) -> list[str]:
    """Where a row was put first says nothing about it."""
    at = flags.index("--results") if "--results" in flags else len(flags)
    return flags[:at] + flags[at + 2 :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
