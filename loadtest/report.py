"""Tables for a terminal of 80 columns, from the figures of measure.summarise and comparison.compare."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.comparison import no_clear_difference

Figures = Mapping[str, Any]

LATENCIES = (
    ("ttft_s", "first token"),
    ("itl_s", "between tokens"),
    ("chunk_gap_s", "between chunks"),
    ("tpot_s", "per token"),
    ("e2e_s", "whole request"),
)
WIDTH = 80
LEFT = 17  # of lines that say what they are of
RATIOS = {"throughput": "tokens/s", "e2e": "request", "ttft": "first token", "tpot": "per token"}
# Column -> latency and statistic.
TIMES = {
    "ttft p50": ("ttft_s", "p50"), "ttft p99": ("ttft_s", "p99"), "itl p99": ("itl_s", "p99"),
    "tpot p50": ("tpot_s", "p50"), "e2e p50": ("e2e_s", "p50"),
}  # fmt: skip


def tables(runs: Sequence[Figures], comparisons: Sequence[Figures]) -> str:
    if len(runs) == 1:
        return table(runs[0])
    parts = [_side_by_side(runs)]
    if comparisons:
        parts.append(_compared(comparisons))
    errors = [line for run in runs for line in _error_lines(run)]
    return "\n\n".join([*parts, "\n".join(errors)] if errors else parts)


def table(figures: Figures) -> str:
    requests, tokens, rate = figures["requests"], figures["tokens"], figures["throughput"]
    lines = [
        *line("model", str(figures.get("model", ""))),
        *line(
            "requests",
            f"{requests['sent']} sent, {requests['ok']} ok, {requests['failed']} failed, "
            f"{requests['abandoned']} abandoned, in {figures['wall_s']:.2f} s",
        ),
        *line(
            "throughput",
            f"{rate['output_tokens_per_s']:,.1f} tokens/s, {rate['requests_per_s']:,.2f} requests/s, "
            f"{rate['chunks_per_s']:,.1f} chunks/s",
        ),
        *line(
            "tokens",
            f"{tokens['prompt']:,} prompt ({tokens['cached']:,} cached), "
            f"{tokens['output']:,} output, {tokens['per_chunk']:.2f} a chunk",
        ),
        "",
        f"{'ms':<16} {'mean':>10} {'p50':>10} {'p90':>10} {'p99':>10} {'max':>10}",
    ]
    lines += [_latency_line(title, figures[name]) for name, title in LATENCIES]
    lines += [*_goodput_lines(figures), *_acceptance_lines(figures), *_error_lines(figures), *_notes(figures)]
    return "\n".join(lines)


def line(what: str, text: str) -> list[str]:
    """What it is of on the left, and the text beside it, on as many lines as it needs."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=f"{what:<{LEFT}}", subsequent_indent=" " * LEFT, break_on_hyphens=False
    ) or [what]


def columns(head: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """A table; titles that leave no room for the figures get lines of their own."""
    first, *names = head
    wide = [max(map(len, cells)) + 2 for cells in zip(names, *(cells for _, cells in rows), strict=True)]
    room, longest = WIDTH - sum(wide), max(len(title) for title in (first, *(title for title, _ in rows)))
    left = min(room, longest)

    def figures(cells: Sequence[str]) -> str:
        return "".join(f"{cell:>{width}}" for cell, width in zip(cells, wide, strict=True))

    lines = [f"{first:<{left}}{figures(names)}"]
    for title, cells in rows:
        lines += [f"{title:<{left}}{figures(cells)}"] if longest <= room else [cut(title), " " * left + figures(cells)]
    return lines


def cut(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


def _side_by_side(runs: Sequence[Figures]) -> str:
    counts = columns(
        ["", "ok", "failed", "tok/s", "req/s", "good", "accepted"], [(run["title"], _counts(run)) for run in runs]
    )
    times = columns(
        ["ms", *TIMES], [(run["title"], [_cell(run, *which) for which in TIMES.values()]) for run in runs]
    )
    return "\n".join([*counts, "", *times])


def _counts(run: Figures) -> list[str]:
    good, rate = run.get("goodput"), (run.get("acceptance") or {}).get("acceptance_rate")
    return [
        str(run["requests"]["ok"]),
        str(run["requests"]["failed"]),
        f"{run['throughput']['output_tokens_per_s']:,.1f}",
        f"{run['throughput']['requests_per_s']:.2f}",
        f"{good['share']:.0%}" if good else "-",
        "-" if rate is None else f"{rate:.1%}",
    ]


def _cell(run: Figures, name: str, statistic: str) -> str:
    row = run.get(name)
    return "-" if row is None else f"{row[statistic] * 1e3:.1f}"


def _compared(rows: Sequence[Figures]) -> str:
    lines = [cut(f"times as fast as {rows[0]['first']}"), f"{'':<{LEFT}}{'times':>8}{'from':>8}{'to':>8}   (95 %)"]
    for row in rows:
        lines += [cut(row["title"]), *(_ratio_line(said, row[name]) for name, said in RATIOS.items())]
        lines += line("  texts", texts(row["texts"]))
    return "\n".join(lines)


def _ratio_line(said: str, row: Figures | None) -> str:
    if not row:
        return f"{'  ' + said:<{LEFT}}{'-':>8}"
    interval = ["-" if row[end] is None else f"{row[end]:.2f}" for end in ("low", "high")]
    cells = "".join(f"{cell:>8}" for cell in (f"{row['ratio']:.2f}", *interval))
    return f"{'  ' + said:<{LEFT}}{cells}" + "   no clear difference" * no_clear_difference(row)


def ratio(row: Figures | None) -> str:
    if not row:
        return "-"
    sure = "" if row["low"] is None else f" ({row['low']:.2f}..{row['high']:.2f})"
    return f"{row['ratio']:.2f}{sure}" + ", no clear difference" * no_clear_difference(row)


def texts(row: Figures) -> str:
    return f"{row['same']} of {row['compared']} same" if row["differ"] else f"{row['same']} same"


def _latency_line(title: str, row: Figures | None) -> str:
    if row is None:
        return f"{title:<16} {'-':>10}"
    cells = (f"{row[name] * 1e3:>10.2f}" for name in ("mean", "p50", "p90", "p99", "max"))
    return f"{title:<16} " + " ".join(cells)


def _goodput_lines(figures: Figures) -> list[str]:
    good = figures.get("goodput")
    if not good:
        return []
    limits = ", ".join(f"{name} {limit * 1e3:g} ms" for name, limit in good["limits_s"].items())
    return line("goodput", f"{good['requests_per_s']:.2f} requests/s within {limits} ({good['share']:.1%})")


def _acceptance_lines(figures: Figures) -> list[str]:
    lines = []
    if said := figures.get("acceptance"):
        rate = "-" if said["acceptance_rate"] is None else f"{said['acceptance_rate']:.1%}"
        each = "-" if said["accepted_per_step"] is None else f"{said['accepted_per_step']:.2f}"
        waste = "-" if said["wasted_rows"] is None else f"{said['wasted_rows']:.1%}"
        lines += line(
            "speculation",
            f"{said['accepted']:,} of {said['drafted']:,} draft tokens accepted "
            f"({rate}), {each} a step, {waste} of rows wasted, as the responses say",
        )
        if said["by_position"]:
            lines += line("  by position", " ".join(f"{share:.0%}" for share in said["by_position"][:16]))
    if server := figures.get("server"):
        counters = (f"{name} {value:,.0f}" for name, value in server.items() if name not in SHARES)
        lines += line("server counted", ", ".join(counters))
        told = [f"{server[name]:.1%} {words}" for name, words in SHARES.items() if name in server]
        lines += line("", ", ".join(told)) if told else []
    return lines


SHARES = {"acceptance_rate": "of draft tokens accepted", "wasted_rows": "of verified rows wasted"}


def _error_lines(figures: Figures) -> list[str]:
    where = f"   ({figures['title']})" if figures.get("side") else ""
    return [
        each
        for kind, count in figures["errors"].items()
        for each in line("error", f"{kind}: {count}   e.g. {figures['error_examples'][kind]}{where}")
    ]


def _notes(figures: Figures) -> list[str]:
    tokens, notes = figures["tokens"], []
    if uncounted := tokens["requests_without_usage"]:
        notes += line("note", f"{uncounted} requests came without usage: their chunks count as tokens")
    if tokens["per_chunk"] > 1.05 and tokens["requests_with_tokens_told"] < figures["requests"]["ok"]:
        notes += line("note", "tokens of a chunk are shared out by characters; --token-ids asks for them")
    return notes
