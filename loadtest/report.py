"""Figures for people: a table and a sentence. Knows the shape of measure.summarise, not how it came to be."""

from __future__ import annotations

from loadtest.arrivals import Arrivals
from loadtest.measure import Figures

LATENCIES = (
    ("ttft_s", "first token"),
    ("itl_s", "between chunks"),
    ("tpot_s", "per token"),
    ("e2e_s", "whole request"),
)
SATURATED_CPU = 0.9
SATURATED_LAG = 0.05


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
    lines += _acceptance_lines(figures)
    for kind, count in figures["errors"].items():
        lines.append(f"error            {kind}: {count}   e.g. {figures['error_examples'][kind]}")
    if tokens["requests_without_usage"]:
        uncounted = tokens["requests_without_usage"]
        lines.append(
            f"note             {uncounted} requests came without usage: their chunks count as tokens"
        )
    return "\n".join(lines)


def verdict(figures: Figures, arrivals: Arrivals) -> str:
    """One sentence that says how it went, and a second when the figures are not the server's."""
    requests, ttft = figures["requests"], figures["ttft_s"]
    if not requests["sent"]:
        return "Nothing was sent."
    tokens = figures["throughput"]["output_tokens_per_s"]
    if arrivals.open_loop:
        what = f"At {arrivals.rate:g} requests/s ({arrivals.process})"
    else:
        what = f"With {arrivals.concurrency} at a time"
    words = f"{what}: {tokens:,.0f} tokens/s"
    if ttft:
        words += f", first token after {_ms(ttft['p50'])} (p50) and {_ms(ttft['p99'])} (p99)"
    words += f", {requests['failed']} of {requests['sent']} requests failed."
    return " ".join([words, *_keeps_up(figures, arrivals), *_saturation(figures)])


def _keeps_up(figures: Figures, arrivals: Arrivals) -> list[str]:
    ended = figures["requests"]["sent"] / max(figures["wall_s"], 1e-9)
    if arrivals.open_loop and figures["requests"]["sent"] >= 20 and ended < 0.8 * arrivals.rate:
        return [f"It did not keep up: {ended:.2f} requests/s ended."]
    return []


def _saturation(figures: Figures) -> list[str]:
    harness = figures.get("harness") or {}
    share, lag = harness.get("cpu_share", 0.0), harness.get("loop_lag_s") or {}
    if share > SATURATED_CPU:
        return [f"The harness used {share:.0%} of a core: it may be the limit itself."]
    if lag.get("p99", 0.0) > SATURATED_LAG:
        return [f"The harness itself was {_ms(lag['p99'])} late (p99): latencies are partly its own."]
    return []


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms"


def _latency_line(title: str, row: Figures | None) -> str:
    if row is None:
        return f"{title:<16} {'-':>10}"
    cells = (f"{row[name] * 1e3:>10.2f}" for name in ("mean", "p50", "p90", "p99", "max"))
    return f"{title:<16} " + " ".join(cells)


def _acceptance_lines(figures: Figures) -> list[str]:
    lines = []
    if said := figures.get("acceptance"):
        rate = "-" if said["acceptance_rate"] is None else f"{said['acceptance_rate']:.1%}"
        each = "-" if said["accepted_per_step"] is None else f"{said['accepted_per_step']:.2f}"
        lines.append(
            f"speculation      {said['accepted']:,} of {said['drafted']:,} draft tokens accepted "
            f"({rate}), {each} a step, as the responses say"
        )
    if server := figures.get("server"):
        counters = (f"{name} {value:,.0f}" for name, value in server.items() if name != "acceptance_rate")
        lines.append("server counted   " + ", ".join(counters))
        if "acceptance_rate" in server:
            lines.append(f"                 {server['acceptance_rate']:.1%} of draft tokens accepted")
    return lines
