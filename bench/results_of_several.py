"""Sections of docs/results.md about several of everything: workers that die under streams, many in simulated time."""

from __future__ import annotations

from typing import Any

from bench.plot import Axis, Line, at
from bench.rows import Row
from bench.section import Section, covering, number, percent, source, table

Rows = dict[str, list[Row]]
Figures = dict[str, Any]
FAILOVERS = {
    "kill": "killed (kill -9)",
    "stop": "stopped (SIGSTOP)",
    "drain": "drained (SIGTERM)",
    "partition": "cut off for 5 s (a network namespace)",
}
RAY_PHASES = ("noticed", "started", "ready")
LOST = "a fifth of the workers is lost"
FAULTS = (LOST, "one of four proposers is lost")
SPLIT_SIDES = {
    "together": "2 workers that do both",
    "split": "1 prefill, 1 decode worker",
    "split_2_1": "2 prefill, 1 decode worker",
}
SPLIT = {
    "itl_p50_ms": "between tokens p50, ms",
    "itl_p99_ms": "p99",
    "short_ttft_p50_ms": "first token, short prompts, p50, ms",
    "long_ttft_p50_ms": "long prompts",
    "alone_ttft_ms": "a long prompt alone",
    "handover_pages": "pages lent and fetched",
}
ROUTED = {"ring": "by the prompt's beginning", "least": "to the least loaded", "round_robin": "by turns"}


def failover(own: Rows) -> Section | None:
    rows = own.get("failover", [])
    shown = covering(rows, lambda figures: set(figures) & {*FAILOVERS})
    if not shown:
        return None
    section = Section("A worker that dies under streams")
    section.say(
        "Streams at two workers with the default model, one of which is struck when all have begun. A text differs if "
        "it isn't that of a calm run; the gap of a stream is its longest time without new text, also in the calm run. "
        "A worker that is started again loads its model on the same cores."
    )
    told: set[str] = set()
    for row in shown:
        figures = {name: seen for name, seen in row["figures"].items() if name in FAILOVERS and name not in told}
        told |= set(figures)
        lines = [_failed("calm run", row["figures"]["calm"])]
        lines += [_failed(FAILOVERS[name], seen) for name, seen in figures.items()]
        head = ["", "times", "failed", "texts differ", "seen after, at most, s", "gap p50, s", "p99", "longest"]
        section.say(table(head, lines), source("failover", row, rows))
    return section


def _failed(said: str, seen: Figures) -> list[str]:
    gaps = [number(seen[name]) for name in ("gap p50, s", "gap p99, s", "gap, longest, s")]
    wrong = [str(seen["failed"]), str(seen["differ"])]
    return [said, number(seen.get("times")), *wrong, number(seen.get("seen after, s")), *gaps]


def on_ray(own: Rows) -> Section | None:
    rows = own.get("on_ray", [])
    deaths = covering(rows, lambda figures: {figures["engine"]} if "machine" in figures else set())
    trips = covering(rows, lambda figures: {"ratio"} & set(figures))
    if not deaths and not trips:
        return None
    section = Section("A machine of a Ray cluster that dies")
    section.say(
        "Three Ray nodes on one machine, a worker on each, streams at them; a node is killed when all have begun. The "
        "seconds count from then on: the keeper gives the worker up, another one's watcher runs, it may be given work. "
        "A machine that loses power instead is noticed by its silence."
    )
    for row in deaths:
        figures = row["figures"]
        lines = [_failed(f"{figures['engine']} engine, calm", figures["calm"])]
        lines += [_failed(f"{figures['engine']} engine, a node dies", figures["machine"])]
        head = ["", "times", "failed", "texts differ", "seen after, s", "gap p50, s", "p99", "longest"]
        phases = [[name, *(number(figures["machine"][f"{name}{of}, s"]) for of in (" p50", ", longest"))]
                  for name in RAY_PHASES]  # fmt: skip
        section.say(table(head, lines), table(["placed anew", "p50, s", "longest, s"], phases))
        section.say(source("on_ray", row, rows))
    for row in trips:
        trip = [number(row["figures"][name]) for name in ("up, ms", "ray, ms", "ratio")]
        said = "One stream's time between tokens, p50: the mesh under `up`, and on Ray beside it, in turns."
        section.say(said, table(["up, ms", "on Ray, ms", "ratio"], [trip]), source("on_ray", row, rows))
    return section


def simulated(own: Rows) -> Section | None:
    rows = own.get("simulate", [])
    shown = covering(rows, _kind)
    if not shown:
        return None
    section = Section("Many workers, in simulated time")
    section.say(
        "The streamers' own routing, admission and retry budget, without sockets and without a model. Workers are "
        "queues whose prompts don't hold up their answers, or have the worker's real scheduler, where they do "
        "(bench/simulated/workers.py). Loads are compared twice a simulated second."
    )
    widest = max(shown, key=lambda row: int(row["figures"]["workers"]))["figures"]
    if curve := [(float(x), float(y)) for x, y in widest.get(LOST, {}).get("curve", ())]:
        title = f"A fifth of {widest['workers']} workers is lost"
        x, y = Axis("simulated seconds since then"), Axis("queue time p99, s", low=0)
        lines = [Line("queue time p99", curve), at(0.0, "lost", 0.0, max(value for _, value in curve))]
        section.draw("simulate", title, x, y, lines)
    for row in shown:
        figures = row["figures"]
        sizes = [f"{number(figures[what])} {what}" for what in ("workers", "streamers", "requests")]
        sizes.append("real schedulers" if figures.get("scheduler") else "queues")
        cells = [_policy(ROUTED[name], figures[name]) for name in ROUTED if name in figures]
        head = [
            ", ".join(sizes), "max/mean load, median", "worst", "of prompts cached", "queue time p50, s", "p99",
            "µs a routed request",
        ]  # fmt: skip
        faults = [_fault(name, figures[name]) for name in FAULTS if name in figures]
        last = ["", "queue time p99 before, s", "worst", "back after, s", "sent again", "refused", "without drafts"]
        section.say(table(head, cells), table(last, faults), _streamers(figures), source("simulate", row, rows))
    return section


def _kind(figures: Figures) -> set[Any]:
    return {(figures["workers"], figures.get("scheduler", False))} if "requests" in figures else set()


def _policy(said: str, seen: Figures) -> list[str]:
    return [
        said, number(seen["max/mean load, median"]), number(seen["max/mean load, worst"]), percent(seen["prefix hits"]),
        number(seen["queue time p50, s"]), number(seen["queue time p99, s"]),
        number(seen["us a routed request"] or None),
    ]  # fmt: skip


def _streamers(figures: Figures) -> str:
    """Simulated, because streamers that share two cores with everything else would say nothing."""
    if not (two := figures.get("two streamers, of one")):
        return ""
    seen = "; ".join(f"asked for {number(float(demand))} times that: {number(times)}" for demand, times in two.items())
    return f"What two streamers with a core each pass on, of what one can (simulated), {seen}."


def _fault(said: str, seen: Figures) -> list[str]:
    times = ("queue time p99 before, s", "queue time p99, worst second, s", "back after, s")
    return [said, *(number(seen[name]) for name in (*times, "sent again", "refused", "slowed"))]


def split(own: Rows) -> Section | None:
    rows = [row for row in own.get("split", []) if "together_itl_p99_ms" in row["figures"]]
    if not rows:
        return None
    row, figures = rows[-1], rows[-1]["figures"]
    section = Section("Prefill and decode workers")
    section.say(
        "Short prompts with long answers run all the time, and long prompts come beside them; the time between tokens "
        "is that of the short ones' answers meanwhile. All sides run on the same cores."
    )
    lines = [
        [said, *(number(figures[f"{side}_{name}"]) for name in SPLIT)]
        for side, said in SPLIT_SIDES.items()
        if f"{side}_itl_p99_ms" in figures
    ]
    same = "All texts are the same." if figures["same_texts"] else "**Texts differ.**"
    section.say(table(["", *SPLIT.values()], lines), same, source("split", row, rows))
    return section


SEVERAL = (failover, on_ray, simulated, split)
