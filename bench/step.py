"""Runs recorded steps again: `python -m bench step --replay FILE [--setting NAME=VALUE ...]`.

A worker with the setting record_steps wrote the file (services/worker/running/replay.py). The model is loaded anew
with the settings given here; they have to be the worker's. Says how many steps gave other tokens, and how long they
took then and now. Exit code 1: tokens differ.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.shown import table
from services.api.settings import load_settings
from services.worker.loading import load_runner
from services.worker.running import replay
from services.worker.running.work import Result

HELP = "recorded steps of a worker (record_steps) again: are the tokens the same, and how long do they take?"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench step", description=HELP)
    parser.add_argument("--replay", type=Path, required=True, metavar="FILE", help="written by a worker")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of that worker")
    options = parser.parse_args(argv)
    runner = load_runner(load_settings(dict(each.split("=", 1) for each in options.setting)))
    seen = figures((step.result, now) for step, now in replay.run_again(runner, replay.read(options.replay)))
    print(table(["", "seen"], [[name, str(value)] for name, value in seen.items()]))
    return int(bool(seen["steps with other tokens"]))


def figures(pairs: Iterable[tuple[Result, Result]]) -> dict[str, Any]:
    """(recorded, now) of each step."""
    steps = list(pairs)
    if not steps:
        raise SystemExit("no step is recorded there")
    seconds = [then.seconds for then, _ in steps], [now.seconds for _, now in steps]
    p50 = [statistics.median(each) * 1e3 for each in seconds]
    return {
        "steps": len(steps),
        "steps with other tokens": sum(replay.tokens_of(then) != replay.tokens_of(now) for then, now in steps),
        "p50 then, ms": round(p50[0], 3),
        "p50 now, ms": round(p50[1], 3),
        "all then, s": round(sum(seconds[0]), 3),
        "all now, s": round(sum(seconds[1]), 3),
    }
