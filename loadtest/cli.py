"""`specmesh load`: turns flags into a plan, runs it, writes the reports and returns an exit code."""

from __future__ import annotations

import argparse
import asyncio
import gc
import platform
import sys
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any

from loadtest.assertions import assertion
from loadtest.client import ServerUnusable
from loadtest.flags import parser, plan_of
from loadtest.live import Live
from loadtest.measure import Figures
from loadtest.output import as_csv, as_json, as_lines, write
from loadtest.page import page
from loadtest.plan import Plan
from loadtest.report import tables
from loadtest.run import Result, run
from loadtest.verdict import verdict

OK, FAILED, BAD_USAGE, NO_SERVER, INTERRUPTED = 0, 1, 2, 3, 130
LIVE_EVERY = 0.5  # seconds


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    try:
        plan = plan_of(options)
    except ValueError as problem:
        print(f"specmesh load: {problem}", file=sys.stderr)
        return BAD_USAGE
    # Garbage collection during a stream would show as latency, and outcomes hold no cycles.
    gc.set_threshold(100_000, 50, 50)
    try:
        result = _run(plan, live=not options.quiet and sys.stderr.isatty())
    except ServerUnusable as problem:
        print(f"specmesh load: {problem}", file=sys.stderr)
        return NO_SERVER
    except KeyboardInterrupt:
        return INTERRUPTED
    report = {"verdict": verdict(result.runs, result.comparisons), **_circumstances(options)}
    _write(options, report, result)
    if not options.quiet:
        print(tables(result.runs, result.comparisons) + "\n")
    print(report["verdict"])
    broken = [told for text in options.assertions for told in assertion(text).failures(result.runs, result.comparisons)]
    for told in broken:
        print(f"NOT SO: {told}")
    return FAILED if broken or not within(result.runs, options.max_error_rate) else OK


def within(runs: Sequence[Figures], max_error_rate: float) -> bool:
    return all(run["requests"]["sent"] and run["requests"]["error_rate"] <= max_error_rate for run in runs)


def _run(plan: Plan, live: bool) -> Result:
    if not live:
        return run_loop(run(plan))
    view = Live()
    try:
        return run_loop(run(plan, view, LIVE_EVERY))
    finally:
        view.done()


def run_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Uses uvloop where installed: it halves the cost of a read."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def _write(options: argparse.Namespace, report: Figures, result: Result) -> None:
    several = {**report, "runs": result.runs, "comparisons": result.comparisons}
    if options.json:
        # The figures of a single run are at the top level.
        write(options.json, as_json(several if len(result.runs) > 1 else {**report, **result.runs[0]}))
    if options.csv:
        write(options.csv, as_csv(result.runs))
    if options.html:
        write(options.html, page(several))
    if options.records:
        write(options.records, as_lines(result.records))


def _circumstances(options: argparse.Namespace) -> Figures:
    hidden = ("api_key", "json", "csv", "html", "records")
    shown = {name: value for name, value in vars(options).items() if name not in hidden}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "options": shown,
    }
