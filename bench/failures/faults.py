"""What a proposer that fails costs: the real mesh, one fault after the other, requests without speculation and with
`auto` in turns while it lasts. Nothing may fail, no token may change, and it may take 2 % more time.

A cell is a fault, a workload and a number of streams. In it blocks of so many requests at once run for --seconds,
each block both ways, who is first changes; of each pair of blocks comes one ratio, and of the ratios the interval.
What one way has learned the other doesn't know: their requests have another `cache_salt`.

noise     none, and both ways without speculation: what this machine's ratios are worth
none      none
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

from bench.failures.separate_roles import SeparateRoles, separate_roles
from bench.shown import Shown
from bench.workloads import WORKLOADS, Body, route, salt_of

HELP = "a proposer that dies, stops, is late or lies: failures, changed texts, and what it costs"
BAR = 0.98
NAME = "measured"
KILL_EVERY = 3.0
NAIVE, AUTO = "naive", "auto"
LEAST_BLOCKS, MOST_BLOCKS = 4, 64
SHOWN = (
    Shown("A proposer that fails", "cells>*",
          {"speed&of_95_%>0&of_95_%>1": "of the speed without speculation (95 %)", "failed": "failed",
           "differ": "texts that differ"},
          "Killed every 3 s, stopped, 200 ms late, or sure of nonsense."),
)  # fmt: skip


class Answer(NamedTuple):
    text: str
    seconds: float


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--faults", default="kill,stop,slow,garbage", help=f"comma-separated, of {', '.join(FAULTS)}")
    parser.add_argument("--workloads", default="chat,edit", help=f"comma-separated, of {', '.join(WORKLOADS)}")
    parser.add_argument("--streams", default="1,4,16", help="at a time, comma-separated")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help=f"for a cell; at least {LEAST_BLOCKS} pairs of blocks"
    )
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of the server")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    settings = {"method": AUTO, "cache_dir": "", "prefix_cache": False}
    settings |= dict(each.split("=", 1) for each in options.setting)
    cells: dict[str, dict[str, Any]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="mesh-") as folder,
        separate_roles(Path(folder), served_model_name=NAME, store_dir=f"{folder}/store", **settings) as mesh,
    ):
        for workload in options.workloads.split(","):
            _together(mesh, WORKLOADS[workload].requests(2, 9), AUTO, ["warm up"] * 2)
        for fault in options.faults.split(","):
            with FAULTS[fault](mesh):
                for workload in options.workloads.split(","):
                    for streams in map(int, options.streams.split(",")):
                        key = f"{fault}, {workload}, {streams} at a time"
                        ways = (NAIVE, NAIVE if fault == "noise" else AUTO)
                        cells[key] = _cell(mesh, workload, streams, ways, options.seconds, key)
                        print(key, cells[key], flush=True)
    return {"cells": cells, "missed": list(_missed(cells))}


def _missed(cells: dict[str, Any]) -> Iterator[str]:
    for key, seen in cells.items():
        if seen["failed"] or seen["differ"]:
            yield f"{key}: {seen['failed']} failed, {seen['differ']} texts differ"
        if seen["speed"] < BAR and not key.startswith("noise"):
            sure = "surely" if seen["of_95_%"][1] < BAR else "perhaps"
            yield f"{key}: {sure} {seen['speed']} of the speed without speculation, at least {BAR}"


def _cell(
    mesh: SeparateRoles, workload: str, streams: int, ways: tuple[str, str], seconds: float, key: str
) -> dict[str, Any]:
    bodies = WORKLOADS[workload].requests(MOST_BLOCKS * streams, 7)
    ratios: list[float] = []
    failed = differ = 0
    end = time.monotonic() + seconds
    for turn in range(MOST_BLOCKS):
        if turn >= LEAST_BLOCKS and time.monotonic() > end:
            break
        block = bodies[turn * streams : (turn + 1) * streams]
        found: dict[int, list[Answer | None]] = {}
        for side in (turn % 2, 1 - turn % 2):
            numbers = range(turn * streams, (turn + 1) * streams)
            salts = [salt_of(workload, f"{key} {side}", number) for number in numbers]
            found[side] = _together(mesh, block, ways[side], salts)
        plain, guessed = found[0], found[1]
        failed += sum(each is None for each in plain + guessed)
        both = [(a, b) for a, b in zip(plain, guessed, strict=True) if a is not None and b is not None]
        differ += sum(a.text != b.text for a, b in both)
        if both:
            ratios.append(sum(a.seconds for a, _ in both) / sum(b.seconds for _, b in both))
    # Where nobody was answered both ways there is nothing to compare.
    speed, (low, high) = (statistics.geometric_mean(ratios), _interval(ratios)) if ratios else (0.0, (0.0, 0.0))
    return {
        "pairs": len(ratios),
        "failed": failed,
        "differ": differ,
        "speed": round(speed, 3),
        "of_95_%": [round(low, 3), round(high, 3)],
    }


def _interval(ratios: list[float]) -> tuple[float, float]:
    chance = np.random.default_rng(1)
    means = np.exp(np.log(chance.choice(ratios, (2000, len(ratios)))).mean(axis=1))
    return float(np.percentile(means, 2.5)), float(np.percentile(means, 97.5))


def _together(mesh: SeparateRoles, bodies: list[Body], method: str, salts: list[str]) -> list[Answer | None]:
    with ThreadPoolExecutor(len(bodies)) as callers:
        return list(callers.map(lambda body, salt: _ask(mesh.url, body, method, salt), bodies, salts))


def _ask(url: str, body: Body, method: str, salt: str) -> Answer | None:
    wish = {"model": NAME, "speculation": {"method": method}, "cache_salt": salt, "temperature": 0}
    data = json.dumps({**body, **wish}).encode()
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
        mesh.replace_proposer(["-m", "bench.failures.faulty_proposer", kind])
        try:
            yield
        finally:
            mesh.replace_proposer()

    return fault


FAULTS: dict[str, Callable[[SeparateRoles], Any]] = {
    "noise": _none,
    "none": _none,
    "kill": _killed,
    "stop": _stopped,
    "slow": _faulty("slow"),
    "garbage": _faulty("garbage"),
}
