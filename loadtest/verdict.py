"""Summarises a run in sentences, from the figures of measure and comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.comparison import no_clear_difference
from loadtest.watch import saturation

Figures = Mapping[str, Any]
# A server falls behind if it completes less than KEEPS_UP of the offered rate, and request durations grow by at least
# GROWS seconds per second.
KEEPS_UP, GROWS = 0.85, 0.1


def verdict(runs: Sequence[Figures], comparisons: Sequence[Figures]) -> str:
    if not any(run["requests"]["sent"] for run in runs):
        return "Nothing was sent."
    sentences = []
    for label in dict.fromkeys(run["side"] for run in runs):
        mine = [run for run in runs if run["side"] == label]
        if len(mine) == 1:
            sentences.append(_single(mine[0]))
        elif not comparisons or mine[0]["load"]["open_loop"]:
            sentences.append(_sweep(mine, label))
    for label in dict.fromkeys(each["other"] for each in comparisons):
        sentences += _compared([each for each in comparisons if each["other"] == label])
    told = [sentence for run in runs for sentence in saturation(run)]
    return " ".join([*sentences, *list(dict.fromkeys(told))[:1]])


def _single(run: Figures) -> str:
    requests, ttft = run["requests"], run["ttft_s"]
    words = f"{_where(run)}: {run['throughput']['output_tokens_per_s']:,.0f} tokens/s"
    if ttft:
        words += f", first token after {_ms(ttft['p50'])} (p50) and {_ms(ttft['p99'])} (p99)"
    words += f", {requests['failed']} of {requests['sent']} requests failed."
    if run.get("goodput"):
        good = run["goodput"]
        words += f" {good['share']:.0%} of requests met {_limits(good['limits_s'])}: {good['requests_per_s']:.2f}/s."
    if not keeps_up(run):
        words += f" It did not keep up: {ended_rate(run):.2f} requests/s ended."
    return words


def _where(run: Figures) -> str:
    load, label = run["load"], f"{run['side']}: " if run["side"] else ""
    if load["process"] == "trace":
        return f"{label}Along the trace"
    if load["open_loop"]:
        return f"{label}At {load['rate']:g} requests/s ({load['process']})"
    return f"{label}With {load['concurrency']} at a time"


# A sweep --------------------------------------------------------------------------------------------------


def _sweep(runs: Sequence[Figures], label: str) -> str:
    who = f"{label}: " if label else ""
    if runs[0]["load"]["open_loop"]:
        return who + _rates(sorted(runs, key=lambda run: run["load"]["rate"]))
    return who + _callers(runs)


def _rates(runs: Sequence[Figures]) -> str:
    """The highest rate before the first one that is not sustained."""
    held = []
    for run in runs:
        if not holds(run):
            break
        held.append(run)
    if not held:
        return f"Does not hold even {runs[0]['load']['rate']:g} requests/s: {why_not(runs[0])}."
    best = held[-1]
    least = "at least " if len(held) == len(runs) else ""
    said = f"Holds {least}{best['load']['rate']:g} requests/s at {_kept(best)}"
    if len(held) < len(runs):
        missed = runs[len(held)]
        said += f"; not {missed['load']['rate']:g}: {why_not(missed)}"
    return said + "."


def _callers(runs: Sequence[Figures]) -> str:
    fitting = [run for run in runs if holds(run)]
    if not fitting:
        return f"No number of callers tried is held: with {runs[0]['load']['concurrency']}, {why_not(runs[0])}."
    best = max(fitting, key=lambda run: run["throughput"]["output_tokens_per_s"])
    tokens, callers = best["throughput"]["output_tokens_per_s"], best["load"]["concurrency"]
    return f"Gives most with {callers} at a time: {tokens:,.0f} tokens/s at {_kept(best)}."


def holds(run: Figures) -> bool:
    return not why_not(run)


def why_not(run: Figures) -> str:
    """The first reason: errors, falling behind, or an exceeded limit."""
    if run["requests"]["failed"]:
        return f"{run['requests']['failed']} of {run['requests']['sent']} requests failed"
    if not keeps_up(run):
        return f"only {ended_rate(run):.2f} requests/s ended"
    for name, limit in (run.get("goodput") or {"limits_s": {}})["limits_s"].items():
        seen = (run.get(f"{name}_s") or {}).get("p99", 0.0)
        if seen > limit:
            return f"p99 of {name.upper()} is {_ms(seen)}, over {_ms(limit)}"
    return ""


def keeps_up(run: Figures) -> bool:
    load = run["load"]
    if not load["open_loop"] or load["process"] == "trace":
        return True
    return (run["e2e_growth"] or 0.0) < GROWS or ended_rate(run) >= KEEPS_UP * load["rate"]


def ended_rate(run: Figures) -> float:
    """Completed requests per second, not counting the duration of one answer after the last start."""
    tail = (run.get("e2e_s") or {}).get("min", 0.0)
    return float(run["requests"]["sent"] / max(run["wall_s"] - tail, 1e-9))


def _kept(run: Figures) -> str:
    limits = (run.get("goodput") or {}).get("limits_s") or {}
    names = [name for name in limits if run.get(f"{name}_s")] or (["ttft"] if run["ttft_s"] else [])
    if not names:
        return "no tokens at all"
    return ", ".join(f"p99 {name.upper()} under {_rounded_up(run[f'{name}_s']['p99'])}" for name in names)


def _rounded_up(seconds: float) -> str:
    """Rounds up to two digits, so that `under` stays true."""
    thousandths = seconds * 1e3
    step = 10.0 ** (math.floor(math.log10(max(thousandths, 1e-3))) - 1)
    return f"{(math.floor(thousandths / step) + 1) * step:,.10g} ms"


# Two sides ------------------------------------------------------------------------------------------------


def _compared(rows: Sequence[Figures]) -> list[str]:
    same, pairs = sum(row["texts"]["same"] for row in rows), sum(row["texts"]["compared"] for row in rows)
    said = [_faster(rows[0]) if len(rows) == 1 else crossover(rows)]
    texts = "all texts are the same" if same == pairs else f"{pairs - same} of {pairs} texts differ"
    return [*said, f"Of {pairs} answers of both {texts}." if pairs else "No answer of both can be compared."]


def headline(row: Figures) -> Mapping[str, Any] | None:
    """The main ratio: throughput in a closed loop, request time at a given rate."""
    found: Mapping[str, Any] | None = row["e2e"] if row["load"]["open_loop"] else row["throughput"]
    return found


def _faster(row: Figures) -> str:
    seen = headline(row)
    if not seen:
        return f"{row['other']} cannot be compared with {row['first']}."
    what = "time of a request" if row["load"]["open_loop"] else "tokens/s"
    sure = "" if seen["low"] is None else f", 95 %: {seen['low']:.2f} to {seen['high']:.2f}"
    if no_clear_difference(seen):
        return f"{row['other']} beside {row['first']}: no clear difference ({what} {seen['ratio']:.2f} times{sure})."
    return f"{row['other']} is {seen['ratio']:.2f} times as fast as {row['first']} ({what}{sure})."


def crossover(rows: Sequence[Figures]) -> str:
    """The load from which the second side is slower, by the confidence intervals."""
    unit = "requests/s" if rows[0]["load"]["open_loop"] else "at a time"
    points = [(each["load"].get("rate") or each["load"]["concurrency"], headline(each)) for each in rows]
    seen = sorted(((at, row) for at, row in points if row), key=lambda pair: pair[0])
    if not seen:
        return f"{rows[0]['other']} cannot be compared with {rows[0]['first']}."
    listed = ", ".join(
        f"{row['ratio']:.2f} at {at:g}" + " (no clear difference)" * no_clear_difference(row) for at, row in seen
    )
    slower = [at for at, row in seen if (row["ratio"] if row["high"] is None else row["high"]) < 1.0]
    if not slower:
        end = f"nowhere clearly slower up to {seen[-1][0]:g} {unit}"
    elif slower == [at for at, _ in seen if at >= slower[0]]:
        end = f"slower from {slower[0]:g} {unit} on"
    else:
        end = f"slower at {', '.join(f'{at:g}' for at in slower)} {unit}"
    return f"{rows[0]['other']} beside {rows[0]['first']}: {listed} times as fast; {end}."


def _limits(limits: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_ms(limit)}" for name, limit in limits.items())


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms"
