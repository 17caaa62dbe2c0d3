"""`python -m bench` runs those in ALL; `python -m bench NAME [flags]` one; `python -m bench list` lists them.

A benchmark prints its figures, appends them as a row to bench/results/NAME.jsonl, and exits 1 when a bar it
knows was missed (`missed` in the figures).
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from types import ModuleType

from bench import rows

# Name -> module; in the order in which they run, a few minutes in all.
ALL = {
    "harness": "bench.harness",
    "bus": "bench.bus",
    "step_overhead": "bench.step_overhead",
    "mesh": "bench.mesh",
}
# Need more than this machine may have (a model, peers): run by name.
BY_NAME = {
    "peers": "bench.peers",
    "engine": "bench.engine",
    "verify": "bench.verify",
    "serving": "bench.serving",
    "same_text": "bench.same_text",
    "losslessness": "bench.losslessness",
    "gpu": "bench.gpu",
    "proposer": "bench.proposer",
    "speculation": "bench.speculation",
    "segments": "bench.segments",
    "faults": "bench.faults",
    "restart": "bench.restart",
}


def main(argv: list[str]) -> int:
    if argv and argv[0] in ("-h", "--help", "list"):
        return _list()
    name, flags = argv[0] if argv else "all", argv[1:]
    if name == "all":
        codes = [_run(each, flags) for each in ALL]
        return max(codes)
    if name not in ALL | BY_NAME:
        print(f"no benchmark named {name!r}; there are {', '.join(ALL | BY_NAME)}", file=sys.stderr)
        return 2
    module = _module(name)
    if hasattr(module, "main"):
        return int(module.main(flags) or 0)
    return _run(name, flags)


def _list() -> int:
    print("python -m bench [NAME [flags]]; without a name these run:")
    for name in ALL:
        print(f"  {name:<14} {_module(name).HELP}")
    print("by name only: " + ", ".join(BY_NAME))
    return 0


def _run(name: str, flags: list[str]) -> int:
    module = _module(name)
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=module.HELP)
    parser.add_argument("--no-row", action="store_true", help="print only, append nothing to bench/results")
    module.flags(parser)
    options = parser.parse_args(flags)
    print(f"== {name}", flush=True)
    figures = module.measure(options)
    print(json.dumps(figures, indent=2))
    if not options.no_row:
        rows.append(name, [name, *flags], figures)
    for missed in figures.get("missed", []):
        print(f"MISSED {name}: {missed}")
    return 1 if figures.get("missed") else 0


def _module(name: str) -> ModuleType:
    return importlib.import_module((ALL | BY_NAME)[name])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
