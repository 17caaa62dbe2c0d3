"""What a restart of the proposer costs: requests that resemble each other under `specmesh up`, the proposer killed in
the middle (kill -9), tokens a step before and after. Whoever watches the process starts it again.

    kept      what it had learned is on disk
    cold      nothing is: it begins with nothing
    all       as kept; the process it is forked from dies with it, and `up` starts both anew
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.plot import Axis, Line, at, write_picture
from bench.running_mesh import ROOT, MeshFailed, RunningMesh, parent_of, running_mesh
from bench.streams import listen
from bench.workloads import WORKLOADS, Body

HELP = "tokens a step around a restart of the proposer, with and without what it learned; draws a picture"
KINDS = ("kept", "cold", "all")
BAR_SECONDS = 2.0
# Of the tokens a step before, when it counts as back; and for how long it has to be so.
BACK = 0.9
LASTING = 2.0
NAME = "measured"
STREAMS = 2
EVERY = 0.25
# What steps bring differs from text to text: so many samples are one point of the curve.
SMOOTH = 4
PICTURE = ROOT / "docs" / "pictures" / "restart.svg"


class Sample(NamedTuple):
    """`at`: seconds since the proposer died."""

    at: float
    steps: float
    tokens: float


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", default="agentic")
    parser.add_argument("--learned", type=int, default=24, help="requests before the restart is prepared")
    parser.add_argument("--seconds", type=float, default=20.0, help="looked at before and after")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="where the plot goes")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {kind: _one(options, kind) for kind in KINDS}
    _draw(options.picture, figures)
    back = figures["kept"]["back_after_seconds"]
    slow = back is None or back > BAR_SECONDS
    return figures | {"missed": [f"back after {back} s, the bar is {BAR_SECONDS}"] if slow else []}


def _one(options: argparse.Namespace, kind: str) -> dict[str, Any]:
    settings = {"served_model_name": NAME} | ({"store_dir": "none"} if kind == "cold" else {})
    with running_mesh(**settings) as mesh:
        bodies = iter(WORKLOADS[options.workload].requests(10_000, 3))
        with ThreadPoolExecutor(STREAMS) as callers:
            list(callers.map(lambda body: _answered(mesh, body), [next(bodies) for _ in range(options.learned)]))
        with _load(mesh, bodies), ThreadPoolExecutor(1) as beside:
            before = _watched(mesh, options.seconds)
            if not _rate(before):
                raise MeshFailed(f"no step in {options.seconds} s: this machine is too busy to tell anything")
            pid = mesh.processes()["proposer"]
            died = time.monotonic()
            os.kill(parent_of(pid) if kind == "all" else pid, signal.SIGKILL)
            ready = beside.submit(_ready_after, mesh, pid, died)
            after = _watched(mesh, options.seconds)
            return _told(*([sample._replace(at=sample.at - died) for sample in seen] for seen in (before, after))) | {
                "ready_after_seconds": round(ready.result(), 3)
            }


def _ready_after(mesh: RunningMesh, pid: int, died: float) -> float:
    """Seconds until another process says of itself that it is ready."""
    while mesh.processes().get("proposer", pid) == pid or not mesh.is_ready("proposer"):
        time.sleep(0.01)
    return time.monotonic() - died


def _told(before: list[Sample], after: list[Sample]) -> dict[str, Any]:
    usual = _rate(before)
    back = next((sample.at for sample in after if _rate_from(after, sample.at) >= BACK * usual), None)
    return {
        "tokens_a_step_before": round(usual, 3),
        "tokens_a_step_after": round(_rate(after), 3),
        "back_after_seconds": None if back is None else round(back, 2),
        "first_seconds_of_usual": round(statistics.fmean(rate for when, rate in _curve(after) if when < 2) / usual, 3),
        "curve": _curve(before) + _curve(after),
    }


def _rate(samples: list[Sample]) -> float:
    """Tokens a verify step between the first and the last."""
    first, last = samples[0], samples[-1]
    return (last.tokens - first.tokens) / max(1.0, last.steps - first.steps)


def _rate_from(samples: list[Sample], begin: float) -> float:
    """Of the time that follows; 0 where too little does."""
    found = [sample for sample in samples if begin <= sample.at <= begin + LASTING]
    return _rate(found) if samples[-1].at >= begin + LASTING else 0.0


def _curve(samples: list[Sample]) -> list[tuple[float, float]]:
    """Neither side of a restart is smoothed into the other. Where no step was made there is no point."""
    windows = (samples[max(0, end - SMOOTH) : end + 1] for end in range(1, len(samples)))
    return [(round(few[-1].at, 2), round(_rate(few), 3)) for few in windows if few[-1].steps > few[0].steps]


def _draw(path: Path, figures: dict[str, Any]) -> None:
    names = {"kept": "what was learned is on disk", "cold": "nothing is", "all": "kept, the parent dies, too"}
    lines = [Line(names[kind], figures[kind]["curve"]) for kind in KINDS]
    highest = max(rate for line in lines for _, rate in line.points)
    lines.append(at(0.0, "kill -9", 0.0, highest))
    x, y = Axis("seconds since then"), Axis("tokens a step", low=0)
    write_picture(path, "A proposer dies and comes back", x, y, lines)


def _watched(mesh: RunningMesh, seconds: float) -> list[Sample]:
    """Verify steps and the tokens they brought, every so often."""
    found, end = [], time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        seen = mesh.metrics("worker")
        steps = seen.get("specmesh:spec_decode_num_steps_total", 0.0)
        found.append(Sample(now, steps, steps + seen.get("specmesh:spec_decode_num_accepted_tokens_total", 0.0)))
        time.sleep(max(0.0, now + EVERY - time.monotonic()))
    return found


@contextmanager
def _load(mesh: RunningMesh, bodies: Iterator[Body]) -> Iterator[None]:
    """So many streams, one request after the other, until it is left."""
    done, lock = threading.Event(), threading.Lock()

    def stream() -> None:
        while not done.is_set():
            with lock:
                body = next(bodies)
            _answered(mesh, body)

    with ThreadPoolExecutor(STREAMS) as streams:
        running = [streams.submit(stream) for _ in range(STREAMS)]
        try:
            yield
        finally:
            done.set()
            for each in running:
                each.result()


def _answered(mesh: RunningMesh, body: Body) -> None:
    listen(mesh.port, {**body, "model": NAME, "temperature": 0})
