"""The report as one HTML file: summary, tables and plots, light and dark. It loads nothing from other hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from loadtest.plots import STYLE, Axis, PlotLine, plot
from loadtest.report import ratio, texts
from loadtest.verdict import headline

Figures = Mapping[str, Any]

LATENCIES = (
    ("ttft", "Time to the first token"),
    ("itl", "Time between tokens"),
    ("chunk_gap", "Time between chunks"),
    ("tpot", "Time per token of a request"),
    ("e2e", "Time of a whole request"),
)
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>{title}</title><style>{style}
body {{ background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 1360px; padding: 0 1rem; }}
h1 {{ font-size: 1.3rem; }} h2 {{ font-size: 1.05rem; margin-top: 2rem; }}
.verdict {{ font-size: 1.15rem; border-left: 4px solid var(--line-0); padding-left: .8rem; }}
.plots {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 560px), 1fr)); gap: 1rem; }}
.wide {{ overflow-x: auto; }} table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--faint); white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }} pre {{ white-space: pre-wrap; }}
</style></head><body><main><h1>{title}</h1><p class="verdict">{verdict}</p>
{parts}
</main></body></html>
"""


def page(report: Figures) -> str:
    runs, comparisons = report["runs"], report["comparisons"]
    parts = [_section("Runs", _runs_table(runs))]
    if comparisons:
        title = f"Times as fast as {comparisons[0]['first']}, with 95 % intervals"
        parts.append(_section(title, _compared(comparisons)))
    drawn = [*_sweeps(runs), *_crossovers(comparisons), *_latencies(runs), *_positions(runs)]
    parts.append(f'<h2>Plots</h2><div class="plots">{"".join(f"<div>{each}</div>" for each in drawn)}</div>')
    parts.append(_section("Errors", _errors(runs)))
    options = "\n".join(f"{name}: {value}" for name, value in report["options"].items())
    parts.append(f"<h2>How it was run</h2><pre>{escape(options)}</pre>")
    title = f"Load of {report['options'].get('url', '')}, {report['date']}"
    body = "\n".join(each for each in parts if each)
    return PAGE.format(title=escape(title), style=STYLE, verdict=escape(report["verdict"]), parts=body)


def _section(title: str, body: str) -> str:
    return f'<h2>{escape(title)}</h2><div class="wide">{body}</div>' if body else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{escape(each)}</th>' for each in head)
    lines = ("".join(f"<td>{escape(each)}</td>" for each in row) for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{''.join(f'<tr>{each}</tr>' for each in lines)}</tbody></table>"


def _runs_table(runs: Sequence[Figures]) -> str:
    head = ["", "ok", "failed", "tokens/s", "requests/s", "good requests/s"]
    for name, _ in LATENCIES:
        head += [f"{name} p50", "p90", "p99"]
    return _table([*head, "accepted", "rows wasted"], [_run_row(run) for run in runs])


def _run_row(run: Figures) -> list[str]:
    drafts, good = run.get("acceptance") or {}, run.get("goodput")
    row = [run["title"], str(run["requests"]["ok"]), str(run["requests"]["failed"])]
    row += [f"{run['throughput']['output_tokens_per_s']:,.1f}", f"{run['throughput']['requests_per_s']:.2f}"]
    row.append(f"{good['requests_per_s']:.2f}" if good else "-")
    for name, _ in LATENCIES:
        seen = run.get(f"{name}_s")
        row += [f"{seen[each] * 1e3:,.1f} ms" if seen else "-" for each in ("p50", "p90", "p99")]
    return [*row, *(_percent(drafts.get(name)) for name in ("acceptance_rate", "wasted_rows"))]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _compared(rows: Sequence[Figures]) -> str:
    head = ["", "tokens/s", "request", "first token", "per token", "texts"]
    names = ("throughput", "e2e", "ttft", "tpot")
    return _table(head, [[row["title"], *(ratio(row[name]) for name in names), texts(row["texts"])] for row in rows])


def _errors(runs: Sequence[Figures]) -> str:
    rows = [
        [run["title"], kind, str(count), run["error_examples"][kind]]
        for run in runs
        for kind, count in run["errors"].items()
    ]
    return _table(["", "kind", "requests", "for example"], rows) if rows else ""


# Plots ----------------------------------------------------------------------------------------------------


def _latencies(runs: Sequence[Figures]) -> list[str]:
    """Cumulative latency distributions, a line for each run."""
    drawn = []
    for name, title in LATENCIES:
        lines = []
        for run in runs:
            if values := run["quantiles_s"].get(name):
                share = 100.0 / (len(values) - 1)
                points = [(value * 1e3, place * share) for place, value in enumerate(values)]
                lines.append(PlotLine(run["title"] or "all", points))
        if lines:
            # Gaps within a chunk are 0 and can't be shown on a logarithmic axis.
            drawn.append(plot(title, Axis("ms", log=True), Axis("% took at most", low=0.0, high=100.0), lines))
    return drawn


def _sweeps(runs: Sequence[Figures]) -> list[str]:
    """Throughput against latency, a point for each load and a line for each side."""
    if len({_load(run) for run in runs}) < 2:
        return []
    drawn = []
    for name, title in (("ttft", "first token"), ("tpot", "time per token")):
        lines = []
        for side, mine in _by_side(runs).items():
            kept = [run for run in mine if run[f"{name}_s"]]
            points = [(run["throughput"]["output_tokens_per_s"], run[f"{name}_s"]["p99"] * 1e3) for run in kept]
            lines.append(PlotLine(side or "p99", points, marks=True, labels=[f"{_load(run):g}" for run in kept]))
        drawn.append(plot(f"Throughput and {title} (p99), by load", Axis("tokens/s"), Axis("ms", log=True), lines))
    return drawn


def _crossovers(rows: Sequence[Figures]) -> list[str]:
    """Speed-up by load: shows where a side stops being faster."""
    if len({_load(row) for row in rows}) < 2:
        return []
    lines = []
    for other in dict.fromkeys(row["other"] for row in rows):
        seen = [(_load(row), headline(row)) for row in rows if row["other"] == other]
        found = sorted(((at, row) for at, row in seen if row), key=lambda pair: pair[0])
        band = [(at, row["low"], row["high"]) for at, row in found if row["low"] is not None]
        lines.append(PlotLine(other, [(at, row["ratio"]) for at, row in found], band, marks=True))
    across = Axis("requests/s" if rows[0]["load"]["open_loop"] else "requests at a time", log=True)
    title = f"Times as fast as {rows[0]['first']}, by load"
    return [plot(title, across, Axis("times as fast"), lines, level=1.0)]


def _positions(runs: Sequence[Figures]) -> list[str]:
    lines = []
    for run in runs:
        shares = (run.get("acceptance") or {}).get("by_position") or []
        if shares:
            points = [(float(place), 100.0 * share) for place, share in enumerate(shares, 1)]
            lines.append(PlotLine(run["title"] or "all", points, marks=True))
    if not lines:
        return []
    up = Axis("% of drafts that long", low=0.0, high=100.0)
    return [plot("Accepted, by place in the draft", Axis("place"), up, lines)]


def _load(row: Figures) -> float:
    return float(row["load"].get("rate") or row["load"]["concurrency"])


def _by_side(runs: Sequence[Figures]) -> dict[str, list[Figures]]:
    found: dict[str, list[Figures]] = {}
    for run in sorted(runs, key=_load):
        found.setdefault(run["side"], []).append(run)
    return found
