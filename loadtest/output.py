"""Machine-readable output: JSON, CSV, and a line of JSON for every request."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.outcome import Outcome
from loadtest.token_times import tokens_of

Figures = Mapping[str, Any]

# CSV column -> path in the figures.
COLUMNS = {
    "side": "side", "process": "load.process", "rate": "load.rate", "concurrency": "load.concurrency", "model": "model",
    "wall_s": "wall_s", "sent": "requests.sent", "ok": "requests.ok", "failed": "requests.failed",
    "abandoned": "requests.abandoned", "prompt_tokens": "tokens.prompt", "cached_tokens": "tokens.cached",
    "output_tokens": "tokens.output", "tokens_per_s": "throughput.output_tokens_per_s",
    "requests_per_s": "throughput.requests_per_s",
    **{f"{name}_{each}_s": f"{name}_s.{each}" for name in ("ttft", "itl", "chunk_gap", "tpot", "e2e")
       for each in ("mean", "p50", "p90", "p99")},
    "goodput_per_s": "goodput.requests_per_s", "good_share": "goodput.share", "drafted": "acceptance.drafted",
    "accepted": "acceptance.accepted", "acceptance_rate": "acceptance.acceptance_rate",
    "wasted_rows": "acceptance.wasted_rows", "harness_cpu_share": "harness.cpu_share",
    "harness_lag_p99_s": "harness.loop_lag_s.p99",
}  # fmt: skip


def as_json(figures: Figures) -> str:
    return json.dumps(figures, indent=2, default=str) + "\n"


def as_csv(runs: Sequence[Figures]) -> str:
    """A line for each run. Missing figures are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in runs:
        writer.writerow([_found(run, path) for path in COLUMNS.values()])
    return out.getvalue()


def as_lines(outcomes: Iterable[tuple[str, Outcome]]) -> str:
    """A line for each request, with the title of its run; times in seconds on the harness's clock."""
    return "".join(json.dumps({"run": title, **_record(each)}) + "\n" for title, each in outcomes)


def write(path: Path, text: str) -> None:
    """Writes to a file, or to the terminal if the path is -."""
    if str(path) == "-":
        sys.stdout.write(text)
    else:
        path.write_text(text, "utf-8")


def _record(each: Outcome) -> dict[str, Any]:
    return {
        "index": each.index, "turn": each.turn, "scheduled": each.scheduled, "started": each.started,
        "first": each.first, "last": each.last, "ended": each.ended, "prompt_tokens": each.prompt_tokens,
        "output_tokens": tokens_of(each), "chunks": each.chunks, "finish": each.finish, "error": each.error,
        "speculation": each.speculation,
    }  # fmt: skip


def _found(run: Figures, path: str) -> Any:
    value: Any = run
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return "" if value is None else value
