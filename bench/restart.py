"""What a restart of the proposer costs: requests that resemble each other, the proposer killed in the middle (kill -9)
and started again, tokens a step before and after. Once with what it had learned on disk, once with nothing: `kept`,
`cold`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.separate_roles import SeparateRoles, separate_roles
from bench.streams import listen
from bench.workloads import WORKLOADS, Body

HELP = "tokens a step around a restart of the proposer, with and without what it learned"
BAR_SECONDS = 2.0
# Of the tokens a step before, when it counts as back.
BACK = 0.9
NAME = "measured"
STREAMS = 2
EVERY = 0.5
# What steps bring differs from text to text: so much time is looked at as one.
WINDOW = 4


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", default="agentic")
    parser.add_argument("--learned", type=int, default=24, help="requests before the restart is prepared")
    parser.add_argument("--seconds", type=float, default=20.0, help="looked at before and after")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {name: _one(options, name) for name in ("kept", "cold")}
    back = figures["kept"]["back_after_seconds"]
    slow = back is None or back > BAR_SECONDS
    return figures | {"missed": [f"back after {back} s, the bar is {BAR_SECONDS}"] if slow else []}


def _one(options: argparse.Namespace, name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="mesh-") as folder:
        store = str(Path(folder) / "store") if name == "kept" else "none"
        with separate_roles(Path(folder), served_model_name=NAME, store_dir=store) as mesh:
            bodies = iter(WORKLOADS[options.workload].requests(10_000, 3))
            _answered(mesh, [next(bodies) for _ in range(options.learned)])
            with _load(mesh, bodies):
                before = _watched(mesh, options.seconds)
                mesh.kill_role("proposer")
                died = time.monotonic()
                mesh.run_role("proposer")
                after = _watched(mesh, options.seconds)
    return _told(before, [(at - died, steps, tokens) for at, steps, tokens in after])


def _told(before: list[tuple[float, float, float]], after: list[tuple[float, float, float]]) -> dict[str, Any]:
    usual = _rate(before)
    curve = [
        (round(after[at][0], 2), round(_rate(after[max(0, at - WINDOW) : at + 1]), 3)) for at in range(1, len(after))
    ]
    instant = [(after[at][0], _rate(after[at - 1 : at + 1])) for at in range(1, len(after))]
    back = next((at for at, rate in instant if rate >= BACK * usual), None)
    return {
        "tokens_a_step_before": round(usual, 3),
        "tokens_a_step_after": round(_rate(after), 3),
        "back_after_seconds": None if back is None else round(back, 2),
        "curve": curve,
        "first_windows_of_usual": round(statistics.fmean(rate for _, rate in curve[:WINDOW]) / usual, 3),
    }


def _rate(samples: list[tuple[float, float, float]]) -> float:
    """Tokens a verify step between the first and the last."""
    (_, steps, tokens), (_, more_steps, more_tokens) = samples[0], samples[-1]
    return (more_tokens - tokens) / max(1.0, more_steps - steps)


def _watched(mesh: SeparateRoles, seconds: float) -> list[tuple[float, float, float]]:
    """(when, verify steps, tokens generated) every so often."""
    found, end = [], time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        seen = mesh.metrics("target")
        steps = seen.get("specmesh:spec_decode_num_steps_total", 0.0)
        found.append((now, steps, steps + seen.get("specmesh:spec_decode_num_accepted_tokens_total", 0.0)))
        time.sleep(max(0.0, now + EVERY - time.monotonic()))
    return found


@contextmanager
def _load(mesh: SeparateRoles, bodies: Iterator[Body]) -> Iterator[None]:
    """So many streams, one request after the other, until it is left."""
    done, lock = threading.Event(), threading.Lock()

    def stream() -> None:
        while not done.is_set():
            with lock:
                body = next(bodies)
            listen(mesh.port, _asked(body))

    with ThreadPoolExecutor(STREAMS) as streams:
        running = [streams.submit(stream) for _ in range(STREAMS)]
        try:
            yield
        finally:
            done.set()
            for each in running:
                each.result()


def _answered(mesh: SeparateRoles, bodies: list[Body]) -> None:
    with ThreadPoolExecutor(STREAMS) as callers:
        list(callers.map(lambda body: listen(mesh.port, _asked(body)), bodies))


def _asked(body: Body) -> Body:
    return {**body, "model": NAME, "temperature": 0}
