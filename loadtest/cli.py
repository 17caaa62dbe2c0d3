"""`specmesh load`: turns flags into a plan, runs it, writes the reports and returns an exit code."""

from __future__ import annotations

import argparse
import asyncio
import gc
import platform
import signal
import sys
import threading
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from loadtest.assertions import assertion
from loadtest.client import ServerUnusable
from loadtest.flags import parser, plan_of
from loadtest.live import Lines, Live
from loadtest.measure import Figures
from loadtest.output import as_csv, as_json, as_lines, write
from loadtest.page import page
from loadtest.plan import LoadPlan
from loadtest.report import tables
from loadtest.run import LoadResult, Show, run
from loadtest.verdict import verdict

OK, FAILED, BAD_USAGE, NO_SERVER, INTERRUPTED = 0, 1, 2, 3, 130
STOPPED = 128  # and the signal's number
# Seconds between two looks, in a terminal and elsewhere.
LIVE_EVERY, LINES_EVERY = 0.5, 10.0
T = TypeVar("T")


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    options.url = options.url_flag or options.url
    try:
        plan = plan_of(options)
    except ValueError as problem:
        print(f"specmesh load: {problem}", file=sys.stderr)
        return BAD_USAGE
    # Garbage collection during a stream would show as latency, and outcomes hold no cycles.
    gc.set_threshold(100_000, 50, 50)
    try:
        result, stopped_by = _run(plan, options.quiet)
    except ServerUnusable as problem:
        print(f"specmesh load: {problem}", file=sys.stderr)
        return NO_SERVER
    except KeyboardInterrupt:
        return INTERRUPTED
    return _told(options, result, stopped_by)


def _told(options: argparse.Namespace, result: LoadResult, stopped_by: signal.Signals | None) -> int:
    """Writes and prints what was measured, and returns the exit code. Those who stop a run get what there is."""
    early = f"Stopped by {stopped_by.name}; what had ended until then counts. " if stopped_by else ""
    report = {"verdict": early + verdict(result.runs, result.comparisons), **_circumstances(options)}
    if result.runs:
        _write(options, report, result)
        if not options.quiet:
            print(tables(result.runs, result.comparisons) + "\n")
    print(report["verdict"])
    broken = [told for text in options.assertions for told in assertion(text).failures(result.runs, result.comparisons)]
    for told in broken:
        print(f"NOT SO: {told}")
    if stopped_by:
        return STOPPED + stopped_by
    return FAILED if broken or not within(result.runs, options.max_error_rate) else OK


def within(runs: Sequence[Figures], max_error_rate: float) -> bool:
    return all(run["requests"]["sent"] and run["requests"]["error_rate"] <= max_error_rate for run in runs)


def _run(plan: LoadPlan, quiet: bool) -> tuple[LoadResult, signal.Signals | None]:
    if quiet:
        return run_loop(_until_signal(plan, None, LINES_EVERY))
    view, every = (Live(sys.stderr), LIVE_EVERY) if sys.stderr.isatty() else (Lines(sys.stderr), LINES_EVERY)
    try:
        return run_loop(_until_signal(plan, view, every))
    finally:
        view.done()


async def _until_signal(plan: LoadPlan, show: Show | None, every: float) -> tuple[LoadResult, signal.Signals | None]:
    """The result, and the signal that ended the run early. A second signal ends the process at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    seen: list[signal.Signals] = []

    def stopped(number: signal.Signals) -> None:
        seen.append(number)
        stop.set()
        for each in listened:
            loop.remove_signal_handler(each)

    # Only the main thread may listen to signals.
    main = threading.current_thread() is threading.main_thread()
    listened = (signal.SIGINT, signal.SIGTERM) if main else ()
    for each in listened:
        loop.add_signal_handler(each, stopped, each)
    return await run(plan, show, every, stop), seen[0] if seen else None


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """Uses uvloop where installed: it halves the cost of a read."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def _write(options: argparse.Namespace, report: Figures, result: LoadResult) -> None:
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
