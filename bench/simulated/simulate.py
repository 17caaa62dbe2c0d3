"""Many workers in simulated time (bench/simulated/mesh.py): how evenly they are loaded, what of prompts is cached, how
the queue recovers when a fifth of the workers is lost at once, and what a routed request costs of real CPU time.

    python -m bench simulate                     100 workers, by policy; then the loss
    python -m bench simulate --workers 1000 --requests 1000000 --policies ring
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.shown import Shown
from bench.simulated.mesh import RECORDED, SLOTS, STEP, TOKENS_A_STEP, Lengths, Mesh, recorded, traffic

HELP = "routing and admission of up to 1 000 workers in simulated time: balance, prefix hits, loss of a fifth"
POLICIES = ("ring", "least", "round_robin")
LOST = "a fifth of the workers is lost"
# A server that is this busy on average has room for what a lost fifth of it did.
UTILISATION = 0.6
RECOVERED_WITHIN = 30.0  # s
QUIET = 5  # s
FLAT_US = 20.0
MOST_LOAD = 1.25
LEAST_HITS = 1.5
SHOWN = (
    Shown("Many workers, in simulated time", "ring|least|round_robin",
          {"max/mean load, median": "largest of mean load", "prefix hits:.1%": "of prompts cached",
           "queue time p99, s": "queue p99, s", "us a routed request": "µs to route"},
          "The streamers' own routing and admission; workers are queues.",
          by=("workers", "scheduler")),
    Shown("A fifth of them is lost", "a fifth of the workers is lost",
          {"queue time p99 before, s": "queue p99 before, s", "queue time p99, worst second, s": "worst",
           "back after, s": "back after, s", "sent again": "sent again", "refused": "refused"},
          by=("workers", "scheduler")),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=100, metavar="N", help="workers, 2 to 1000 (default 100)")
    parser.add_argument("--streamers", type=int, default=4, metavar="N", help="streamers (default 4)")
    parser.add_argument("--requests", type=int, default=100_000, metavar="N", help="requests (default 100000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the traffic (default 1)")
    parser.add_argument("--policies", default=",".join(POLICIES), help=f"comma-separated, of {', '.join(POLICIES)}")
    kept = "JSON lines with prompt_tokens and completion_tokens (default: recorded ones)"
    parser.add_argument("--lengths", type=Path, default=RECORDED, metavar="FILE", help=kept)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    lengths = recorded(options.lengths)
    figures: dict[str, Any] = {
        "workers": options.workers, "streamers": options.streamers, "requests": options.requests,
    }  # fmt: skip
    for policy in options.policies.split(","):
        figures[policy] = figures_of(*simulated(options, policy, lengths))
        print(policy, figures[policy], flush=True)
    lost_at = 0.4 * options.requests / rate_of(options.workers, lengths)
    mesh, seconds = simulated(options, "ring", lengths, lost_at)
    figures[LOST] = {**after(mesh, lost_at), **figures_of(mesh, seconds)}
    figures["missed"] = list(missed(figures))
    return figures


def rate_of(workers: int, lengths: list[Lengths]) -> float:
    answer = statistics.fmean(each.answer for each in lengths)
    return UTILISATION * workers * SLOTS / (answer * STEP / TOKENS_A_STEP)


def simulated(
    options: argparse.Namespace, policy: str, lengths: list[Lengths], lost_at: float = 0.0
) -> tuple[Mesh, float]:
    """The mesh afterwards, and the real seconds that it took."""
    mesh = Mesh(options.workers, options.streamers, policy, limit=options.workers * SLOTS * 4)
    coming = traffic(rate_of(options.workers, lengths), 20 * options.workers, options.seed, lengths)
    began = time.process_time()
    mesh.run(coming, options.requests, lost_at)
    return mesh, time.process_time() - began


def figures_of(mesh: Mesh, seconds: float) -> dict[str, Any]:
    settled = mesh.balance[len(mesh.balance) // 4 :] or [1.0]
    queued = np.concatenate([np.array(each) for each in mesh.times.values()])
    return {
        "prefix hits": round(mesh.cached / max(1, mesh.pages), 4),
        "max/mean load, median": round(statistics.median(settled), 3),
        "max/mean load, worst": round(max(settled), 3),
        "queue time p50, s": round(float(np.percentile(queued, 50)), 4),
        "queue time p99, s": round(float(np.percentile(queued, 99)), 4),
        "ended": mesh.ended,
        "refused": mesh.refused,
        "sent again": mesh.retried,
        "us a routed request": round(1e6 * mesh.routing_seconds / mesh.routed, 2) if mesh.routed else 0.0,
        "us a simulated request": round(1e6 * seconds / max(1, mesh.ended + mesh.refused), 1),
    }


def after(mesh: Mesh, lost_at: float) -> dict[str, Any]:
    """Seconds until the p99 of the queue time of a second is again what it was before."""
    p99 = {second: float(np.percentile(times, 99)) for second, times in sorted(mesh.times.items())}
    start = int(lost_at)
    before = [value for second, value in p99.items() if start // 4 <= second < start]
    # Small numbers scatter: what was usual before is the worst of many seconds, and a quiet stretch ends the storm.
    late = {second for second, value in p99.items() if second >= start and value > 1.5 * max(before)}
    back = start
    while any(second in late for second in range(back, back + QUIET)):
        back += 1
    return {
        "queue time p99 before, s": round(statistics.median(before), 4),
        "queue time p99, worst second, s": round(max(value for second, value in p99.items() if second >= start), 4),
        "back after, s": back - start,
    }


def missed(figures: dict[str, Any]) -> Iterator[str]:
    ring, turns, lost = figures.get("ring"), figures.get("round_robin"), figures[LOST]
    if ring and ring["max/mean load, median"] > MOST_LOAD:
        yield f"max/mean load is {ring['max/mean load, median']}, more than {MOST_LOAD}"
    if ring and turns and ring["prefix hits"] < LEAST_HITS * turns["prefix hits"]:
        yield f"prefix hits are {ring['prefix hits']}, less than {LEAST_HITS} times {turns['prefix hits']} by turns"
    if lost["back after, s"] > RECOVERED_WITHIN:
        yield f"the queue is back after {lost['back after, s']} s, more than {RECOVERED_WITHIN:g}"
    if ring and ring["us a routed request"] > FLAT_US:
        yield f"a routed request takes {ring['us a routed request']} us, more than {FLAT_US:g}"
