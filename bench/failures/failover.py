"""What callers notice when a worker dies: streams at two workers under `specmesh up`, one of them is killed (kill -9),
stopped (SIGSTOP) or drained (SIGTERM) when all streams have begun, again and again. Compared with a calm run.

The gap of a stream is the longest time without new text in it. A fault is seen when the streamer's health no longer
calls the worker ready. Two workers need twice the memory of one.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import random
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bench.running_mesh import MeshFailed, RunningMesh, descendants, is_parent, running_mesh
from bench.shown import Shown
from bench.streams import Refused, chunks

HELP = "streams at two workers of which one dies, is stopped or drained: failures, changed texts, gaps"
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "drain": signal.SIGTERM}
NAME = "measured"
# Chunks of each stream before a worker is struck.
BEGUN = 3
BACK_WITHIN = 240.0  # s, until both workers are ready again
BARS = {"kill": ("gap p99, s", 1.5), "stop": ("seen after, s", 3.0)}
SHOWN = (
    Shown("A worker that dies under streams", "kill|stop|drain",
          {"times": "times", "failed": "failed", "differ": "texts that differ", "seen after, s": "seen after, s",
           "gap p50, s": "gap p50, s", "gap p99, s": "p99"},
          "One of two workers is struck when all streams have begun. A gap is a stream's longest time without text."),
)  # fmt: skip


class FailoverHeard(NamedTuple):
    text: str
    gap: float
    error: str = ""


# Strikes once, and says after how many seconds that was seen.
Strike = Callable[[RunningMesh], float]


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--faults", default="kill,stop", help=f"comma-separated, of {', '.join(SIGNALS)}")
    parser.add_argument("--times", type=int, default=10, metavar="N", help="of each (default 10)")
    parser.add_argument("--streams", type=int, default=16, metavar="N", help="at a time (default 16)")
    parser.add_argument("--tokens", type=int, default=120, metavar="N", help="of each answer (default 120)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="which worker it is each time (default 1)")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of the server")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    faults = options.faults.split(",")
    chance = random.Random(options.seed)
    # What was learned in the calm run would end every answer before the fault.
    settings = {"served_model_name": NAME, "method": "ngram"} | dict(each.split("=", 1) for each in options.setting)
    with running_mesh(workers=2, **settings) as mesh:
        figures = struck(mesh, options, {fault: signalled(SIGNALS[fault], chance) for fault in faults})
    return figures | {"missed": list(missed(figures))}


def struck(mesh: RunningMesh, options: argparse.Namespace, faults: dict[str, Strike]) -> dict[str, Any]:
    until_ready(mesh)
    calm, _ = together(mesh, options, lambda: None)
    figures: dict[str, Any] = {"calm": told(calm, calm)}
    for fault, strike in faults.items():
        heard: list[FailoverHeard] = []
        seen: list[float] = []
        for _ in range(options.times):
            more, after = together(mesh, options, functools.partial(strike, mesh))
            heard, seen = heard + more, [*seen, after]
            until_ready(mesh)
            print(f"{fault}: {json.dumps(told(heard, calm))}", flush=True)
        figures[fault] = {"times": options.times, "seen after, s": round(max(seen), 2), **told(heard, calm)}
    return figures


def told(heard: list[FailoverHeard], calm: list[FailoverHeard]) -> dict[str, Any]:
    gaps = sorted(each.gap for each in heard)
    return {
        "failed": sum(bool(each.error) for each in heard),
        "differ": sum(each.text != calm[number % len(calm)].text for number, each in enumerate(heard)),
        "gap p50, s": round(gaps[len(gaps) // 2], 3),
        "gap p99, s": round(gaps[len(gaps) * 99 // 100], 3),
        "gap, longest, s": round(gaps[-1], 3),
    }


def missed(figures: dict[str, Any]) -> Iterator[str]:
    for fault, seen in figures.items():
        if seen["failed"] or seen["differ"]:
            yield f"{fault}: {seen['failed']} failed, {seen['differ']} texts differ"
        name, most = BARS.get(fault, ("", 0.0))
        if name and seen[name] > most:
            yield f"{fault}: {name} is {seen[name]}, the bar is {most}"


class Served(Protocol):
    port: int


def together(
    server: Served, options: argparse.Namespace, strike: Callable[[], Any], patience: float = 600.0
) -> tuple[list[FailoverHeard], Any]:
    """All streams at once, and what `strike` says, which is called when they are under way. `patience`: seconds without
    anything new after which a stream has failed."""
    under_way = threading.Semaphore(0)

    def listen(number: int) -> FailoverHeard:
        prompt = f"Story number {number}: once upon a time there was a {number} and then another {number}"
        body = {"model": NAME, "prompt": prompt, "max_tokens": options.tokens, "ignore_eos": True, "temperature": 0}
        try:
            found = chunks(server.port, body, patience, under_way.release)
        except (OSError, HTTPException, ValueError, Refused) as failure:
            return FailoverHeard("", 0.0, str(failure) or type(failure).__name__)
        gaps = [later - before for before, later in itertools.pairwise(found.at)]
        return FailoverHeard(found.text, max(gaps, default=0.0), "" if found.ended else "the stream has no end")

    with ThreadPoolExecutor(options.streams) as callers:
        running = [callers.submit(listen, number) for number in range(options.streams)]
        for _ in range(BEGUN * options.streams):
            # One that failed brings no chunks.
            under_way.acquire(timeout=BACK_WITHIN)
        said = strike()
        return [each.result() for each in running], said


# Faults ----------------------------------------------------------------------------------------------------


def signalled(number: signal.Signals, chance: random.Random) -> Strike:
    def strike(mesh: RunningMesh) -> float:
        pids = workers(mesh)
        name = chance.choice(sorted(pids))
        os.kill(pids[name], number)
        return seen_after(mesh, name)

    return strike


def seen_after(mesh: RunningMesh, name: str) -> float:
    """Seconds until the streamer no longer calls that worker ready."""
    began = time.perf_counter()
    while states(mesh).get(name) == "ready":
        time.sleep(0.02)
    return time.perf_counter() - began


def states(mesh: RunningMesh) -> dict[str, str]:
    """Of workers, as the streamer sees them, by instance."""
    try:
        with urllib.request.urlopen(f"{mesh.url}/health/ready", timeout=10) as answer:
            said = json.load(answer)
    except urllib.error.HTTPError as not_ready:
        said = json.load(not_ready)
    return {each["instance"]: each["state"] for each in said["roles"]["worker"]}


def workers(mesh: RunningMesh) -> dict[str, int]:
    return instances(mesh, "worker")


def instances(mesh: RunningMesh, role: str) -> dict[str, int]:
    """The processes that do a role's work, by instance."""
    found = descendants(mesh.process.pid).items()
    pids = [pid for pid, command in found if f" run {role}" in command and not is_parent(pid)]
    return {name: pid for pid in pids if (name := _instance(pid))}


def _instance(pid: int) -> str:
    """"" where it has just ended."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return dict(each.split(b"=", 1) for each in pairs if b"=" in each).get(b"SPECMESH_INSTANCE", b"").decode()


def until_ready(mesh: RunningMesh, count: int = 2) -> None:
    """So many workers."""
    end = time.monotonic() + BACK_WITHIN
    while [*states(mesh).values()].count("ready") != count:
        if time.monotonic() > end:
            raise MeshFailed(f"no {count} workers within {BACK_WITHIN:g} s: {states(mesh)}")
        time.sleep(0.1)
