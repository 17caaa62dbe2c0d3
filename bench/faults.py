"""What a proposer that fails costs: the real mesh, one fault after the other, requests without speculation and with
`auto` in turns while it lasts. Nothing may fail, no token may change, and it may take 2 % more time.

kill      the proposer dies (kill -9) every three seconds and is started again
stop      it is stopped (SIGSTOP) all the time
slow      it answers everything 200 ms late
garbage   it answers at once, with nonsense it says it is sure of
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.separate_roles import SeparateRoles, separate_roles
from bench.workloads import WORKLOADS, Body, route

HELP = "a proposer that dies, stops, is late or lies: failures, changed texts, and what it costs"
BAR = 0.98
NAME = "measured"
KILL_EVERY = 3.0
OFF, ON = {"method": "naive"}, {"method": "auto"}


class Answer(NamedTuple):
    text: str
    seconds: float


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--faults", default="none,kill,stop,slow,garbage")
    parser.add_argument("--workloads", default="chat,edit")
    parser.add_argument("--pairs", type=int, default=8, help="requests each way, by fault, workload and concurrency")
    parser.add_argument("--concurrency", default="1,4")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="mesh-") as folder,
        separate_roles(Path(folder), served_model_name=NAME, method="auto", cache_dir="", prefix_cache=False) as mesh,
    ):
        _together(mesh, WORKLOADS["chat"].requests(2, 9), ON)
        for fault in options.faults.split(","):
            with FAULTS[fault](mesh):
                for workload in options.workloads.split(","):
                    for concurrency in map(int, options.concurrency.split(",")):
                        key = f"{fault}, {workload}, {concurrency} at a time"
                        figures[key] = _compared(mesh, workload, options.pairs, concurrency)
                        print(key, figures[key], flush=True)
    return figures | {"missed": list(_missed(figures))}


def _missed(figures: dict[str, Any]) -> Iterator[str]:
    for key, seen in figures.items():
        if seen["failed"] or seen["differ"]:
            yield f"{key}: {seen['failed']} failed, {seen['differ']} texts differ"
        if seen["speed"] < BAR:
            yield f"{key}: {seen['speed']} of the speed without speculation, at least {BAR}"


def _compared(mesh: SeparateRoles, workload: str, pairs: int, concurrency: int) -> dict[str, Any]:
    """Blocks of so many at a time, without and with, in turns; who is first changes."""
    bodies = WORKLOADS[workload].requests(pairs, 7)
    ratios, failed, differ = [], 0, 0
    for begin in range(0, pairs, concurrency):
        block = bodies[begin : begin + concurrency]
        order = [OFF, ON] if begin // concurrency % 2 == 0 else [ON, OFF]
        found = {wish["method"]: _together(mesh, block, wish) for wish in order}
        naive, auto = found["naive"], found["auto"]
        failed += sum(each is None for each in naive + auto)
        both = [(a, b) for a, b in zip(naive, auto, strict=True) if a is not None and b is not None]
        differ += sum(a.text != b.text for a, b in both)
        ratios.append(sum(a.seconds for a, _ in both) / sum(b.seconds for _, b in both))
    low, high = _interval(ratios)
    speed = statistics.geometric_mean(ratios)
    return {"failed": failed, "differ": differ, "speed": round(speed, 3), "of_95_%": [round(low, 3), round(high, 3)]}


def _interval(ratios: list[float]) -> tuple[float, float]:
    chance = np.random.default_rng(1)
    means = np.exp(np.log(chance.choice(ratios, (2000, len(ratios)))).mean(axis=1))
    return float(np.percentile(means, 2.5)), float(np.percentile(means, 97.5))


def _together(mesh: SeparateRoles, bodies: list[Body], wish: dict[str, str]) -> list[Answer | None]:
    with ThreadPoolExecutor(len(bodies)) as callers:
        return list(callers.map(lambda body: _ask(mesh.url, body, wish), bodies))


def _ask(url: str, body: Body, wish: dict[str, str]) -> Answer | None:
    data = json.dumps({**body, "model": NAME, "speculation": wish, "temperature": 0}).encode()
    request = urllib.request.Request(url + route(body), data, {"Content-Type": "application/json"})
    begin = time.perf_counter()
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            choice = json.loads(answer.read())["choices"][0]
    except OSError:
        return None
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    return Answer(text, time.perf_counter() - begin)


# Faults -----------------------------------------------------------------------------------------------------


@contextmanager
def _none(mesh: SeparateRoles) -> Iterator[None]:
    yield


@contextmanager
def _killed(mesh: SeparateRoles) -> Iterator[None]:
    done = threading.Event()

    def kill() -> None:
        while not done.wait(KILL_EVERY):
            mesh.kill_role("proposer")
            mesh.run_role("proposer")

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        done.set()
        killer.join()
        mesh.wait_until_ready("proposer")


@contextmanager
def _stopped(mesh: SeparateRoles) -> Iterator[None]:
    os.kill(mesh.pid("proposer"), signal.SIGSTOP)
    try:
        yield
    finally:
        # It was given up meanwhile and ends by itself: another one takes its place.
        mesh.kill_role("proposer")
        mesh.run_role("proposer")
        mesh.wait_until_ready("proposer")


def _faulty(kind: str) -> Callable[[SeparateRoles], Any]:
    @contextmanager
    def fault(mesh: SeparateRoles) -> Iterator[None]:
        mesh.replace_proposer(["-m", "bench.faulty_proposer", kind])
        try:
            yield
        finally:
            mesh.replace_proposer()

    return fault


FAULTS: dict[str, Callable[[SeparateRoles], Any]] = {
    "none": _none,
    "kill": _killed,
    "stop": _stopped,
    "slow": _faulty("slow"),
    "garbage": _faulty("garbage"),
}
