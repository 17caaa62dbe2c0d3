"""Tables for the terminal, from the figures of measure.summarise and comparison.compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Figures = Mapping[str, Any]

LATENCIES = (
    ("ttft_s", "first token"),
    ("itl_s", "between tokens"),
    ("chunk_gap_s", "between chunks"),
    ("tpot_s", "per token"),
    ("e2e_s", "whole request"),
)


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
        f"model            {figures.get('model', '')}",
        f"requests         {requests['sent']} sent, {requests['ok']} ok, {requests['failed']} failed, "
        f"{requests['abandoned']} abandoned, in {figures['wall_s']:.2f} s",
        f"throughput       {rate['output_tokens_per_s']:,.1f} tokens/s   "
        f"{rate['requests_per_s']:,.2f} requests/s   {rate['chunks_per_s']:,.1f} chunks/s",
        f"tokens           {tokens['prompt']:,} prompt ({tokens['cached']:,} cached), "
        f"{tokens['output']:,} output, {tokens['per_chunk']:.2f} a chunk",
        "",
        f"{'ms':<16} {'mean':>10} {'p50':>10} {'p90':>10} {'p99':>10} {'max':>10}",
    ]
    lines += [_latency_line(title, figures[name]) for name, title in LATENCIES]
    lines += [*_goodput_lines(figures), *_acceptance_lines(figures), *_error_lines(figures), *_notes(figures)]
    return "\n".join(lines)


def _side_by_side(runs: Sequence[Figures]) -> str:
    width = max(12, *(len(str(run["title"])) for run in runs))
    head = (
        f"{'':<{width}} {'ok':>6} {'failed':>6} {'tok/s':>9} {'req/s':>8} {'ttft p50':>9} {'p99':>9} "
        f"{'itl p99':>9} {'tpot p50':>9} {'e2e p50':>9} {'good':>6} {'accepted':>9}   ms"
    )
    return "\n".join([head, *(_row(run, width) for run in runs)])


def _row(run: Figures, width: int) -> str:
    good, drafts = run.get("goodput"), run.get("acceptance") or {}
    rate = drafts.get("acceptance_rate")
    return (
        f"{run['title']:<{width}} {run['requests']['ok']:>6} {run['requests']['failed']:>6} "
        f"{run['throughput']['output_tokens_per_s']:>9,.1f} {run['throughput']['requests_per_s']:>8.2f} "
        f"{_cell(run, 'ttft_s', 'p50')} {_cell(run, 'ttft_s', 'p99')} {_cell(run, 'itl_s', 'p99')} "
        f"{_cell(run, 'tpot_s', 'p50')} {_cell(run, 'e2e_s', 'p50')} "
        f"{'-' if not good else format(good['share'], '.0%'):>6} {'-' if rate is None else format(rate, '.1%'):>9}"
    )


def _cell(run: Figures, name: str, statistic: str) -> str:
    row = run.get(name)
    return f"{'-':>9}" if row is None else f"{row[statistic] * 1e3:>9.1f}"


def _compared(rows: Sequence[Figures]) -> str:
    width = max(12, *(len(str(row["title"])) for row in rows))
    lines = [f"{'times as fast as ' + rows[0]['first']:<{width + 6}}"]
    lines.append(f"{'':<{width}} {'tokens/s':>21} {'request':>21} {'first token':>21} {'per token':>21} {'texts':>14}")
    for row in rows:
        cells = " ".join(f"{ratio(row[name]):>21}" for name in ("throughput", "e2e", "ttft", "tpot"))
        lines.append(f"{row['title']:<{width}} {cells} {texts(row['texts']):>14}")
    return "\n".join(lines)


def ratio(row: Figures | None) -> str:
    if not row:
        return "-"
    sure = "" if row["low"] is None else f" ({row['low']:.2f}..{row['high']:.2f})"
    return f"{row['ratio']:.2f}{sure}"


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
    return [f"goodput          {good['requests_per_s']:.2f} requests/s within {limits} ({good['share']:.1%})"]


def _acceptance_lines(figures: Figures) -> list[str]:
    lines = []
    if said := figures.get("acceptance"):
        rate = "-" if said["acceptance_rate"] is None else f"{said['acceptance_rate']:.1%}"
        each = "-" if said["accepted_per_step"] is None else f"{said['accepted_per_step']:.2f}"
        waste = "-" if said["wasted_rows"] is None else f"{said['wasted_rows']:.1%}"
        lines.append(
            f"speculation      {said['accepted']:,} of {said['drafted']:,} draft tokens accepted "
            f"({rate}), {each} a step, {waste} of rows wasted, as the responses say"
        )
        if said["by_position"]:
            shares = " ".join(f"{share:.0%}" for share in said["by_position"][:16])
            lines.append(f"  by position    {shares}")
    if server := figures.get("server"):
        counters = (f"{name} {value:,.0f}" for name, value in server.items() if name not in SHARES)
        lines.append("server counted   " + ", ".join(counters))
        told = [f"{server[name]:.1%} {words}" for name, words in SHARES.items() if name in server]
        if told:
            lines.append("                 " + ", ".join(told))
    return lines


SHARES = {"acceptance_rate": "of draft tokens accepted", "wasted_rows": "of verified rows wasted"}


def _error_lines(figures: Figures) -> list[str]:
    where = f"   ({figures['title']})" if figures.get("side") else ""
    return [
        f"error            {kind}: {count}   e.g. {figures['error_examples'][kind]}{where}"
        for kind, count in figures["errors"].items()
    ]


def _notes(figures: Figures) -> list[str]:
    tokens, notes = figures["tokens"], []
    if uncounted := tokens["requests_without_usage"]:
        notes.append(f"note             {uncounted} requests came without usage: their chunks count as tokens")
    if tokens["per_chunk"] > 1.05 and tokens["requests_with_tokens_told"] < figures["requests"]["ok"]:
        notes.append("note             tokens of a chunk are shared out by characters; --token-ids asks for them")
    return notes
