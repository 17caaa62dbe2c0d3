"""`python -m bench` runs the suite of this machine (bench/suite.py); `full` and `on_gpu` are its other forms.
`python -m bench NAME [flags]` runs one benchmark, `list` lists them, `results` makes docs/results.md from all rows,
`step --replay FILE` runs a worker's recorded steps again.

A benchmark prints its figures and appends them as a row to bench/results/NAME.jsonl. Exit code 1: a bar it knows was
missed (`missed` in the figures); 2: it failed; 3: it can't run here, and says why.

It needs nothing that a benchmark doesn't need itself: on a machine with a GPU there may be torch and little else.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from pathlib import Path

from bench import rows, suite
from bench.names import BENCHMARKS, COMMANDS, MODULES, load

MISSED, FAILED = 1, 2


def main(argv: list[str]) -> int:
    name, flags = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else (suite.SHORT, argv)
    if name == "list":
        return _list()
    if name in COMMANDS:
        return int(load(name).main(flags))
    if name in suite.FORMS:
        return suite.main(name, flags)
    if name not in BENCHMARKS:
        print(f"no benchmark named {name!r}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return FAILED
    return _run(name, flags)


def _list() -> int:
    print(f"python -m bench [FORM | NAME [flags] | {' | '.join(COMMANDS)} | list]; forms of the suite:")
    for form, parts in suite.FORMS.items():
        names = ", ".join(dict.fromkeys(part.name for part in parts))
        print(f"  {form:<15} {suite.minutes(parts)} minutes at most: {names}")
    print("by name:")
    for name in MODULES:
        try:
            said = load(name).HELP
        except ImportError as missing:
            said = f"not here: {missing}"
        print(f"  {name:<15} {said}")
    return 0


def _run(name: str, flags: list[str]) -> int:
    rows.look_around()
    try:
        return _measured(name, flags)
    except SystemExit as ended:
        # A sentence why it can't run; the others come from argparse.
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
            return suite.LEFT_OUT if isinstance(ended, suite.LeftOut) else FAILED
        raise
    except Exception:
        traceback.print_exc()
        return FAILED


def _measured(name: str, flags: list[str]) -> int:
    options = parser(name).parse_args(flags)
    print(f"== {name}", flush=True)
    options.so_far = {}
    try:
        figures = load(name).measure(options)
    except (KeyboardInterrupt, Exception) as problem:
        # What a stage on a GPU has measured until then is a row all the same.
        if not any(isinstance(each, (dict, list)) and each for each in options.so_far.values()):
            raise
        traceback.print_exc()
        why = f"ended early: {type(problem).__name__} {problem}".strip()
        figures = options.so_far | {"ended_early": True, "missed": [*options.so_far.get("missed", ()), why]}
    print(json.dumps(figures, indent=2))
    # Figures of a dry run are no results.
    if not options.no_row and not (figures.get("dry_run") and options.results == rows.RESULTS):
        rows.append(name, [name, *without_results(flags)], figures, options.results)
    for missed in figures.get("missed", []):
        print(f"MISSED {name}: {missed}")
    return FAILED if figures.get("ended_early") else MISSED if figures.get("missed") else 0


def parser(name: str) -> argparse.ArgumentParser:
    module = load(name)
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
