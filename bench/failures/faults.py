"""What a proposer that fails costs: the real mesh, one fault after the other, requests without speculation and with
`auto` in turns while it lasts. Nothing may fail, no token may change, and it may take 2 % more time.

A cell is a fault, a workload and a number of streams, measured as law 4 is (bench/never_slower.py): cold, in blocks
that take turns, with the interval of their ratio.

noise     none, and both ways without speculation: what this machine's ratios are worth
none      none
kill      the proposer dies (kill -9) every three seconds and is started again
stop      it is stopped (SIGSTOP) all the time
slow      it answers everything 200 ms late
garbage   it answers at once, with nonsense it says it is sure of
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import never_slower, served
from bench.failures.separate_roles import SeparateRoles, separate_roles
from bench.shown import Shown

HELP = "a proposer that dies, stops, is late or lies: failures, changed texts, and what it costs"
BAR = 0.98
NAME = "measured"
KILL_EVERY = 3.0
SHOWN = (
    Shown("A proposer that fails", "cells>*",
          {"speed&of_95_%>0&of_95_%>1": "of the speed without speculation (95 %)", "failed": "failed",
           "differ": "texts that differ"},
          "Killed every 3 s, stopped, 200 ms late, or sure of nonsense; named by fault, requests and streams."),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--faults", default="kill,stop,slow,garbage", help=f"comma-separated, of {', '.join(FAULTS)}")
    parser.add_argument("--workloads", default="chat,edit", help="of specmesh load, comma-separated")
    parser.add_argument("--streams", default="1,4,16", help="at a time, comma-separated")
    parser.add_argument("--tokens", type=int, default=96, help="longest answer")
    parser.add_argument("--requests", type=int, default=24, help="of a cell with one stream, for each side")
    parser.add_argument("--waves", type=int, default=12, help="requests of each stream when there are several")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of the server")
    parser.set_defaults(cold=True)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    settings = {"cache_dir": "", "prefix_cache": False} | dict(each.split("=", 1) for each in options.setting)
    cells: dict[str, dict[str, Any]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="mesh-") as folder,
        separate_roles(Path(folder), served_model_name=NAME, store_dir=f"{folder}/store", **settings) as mesh,
    ):
        for fault in options.faults.split(","):
            off, auto = never_slower.sides(mesh.url)
            options.served = [off, off.replace("label=off", "label=auto") if fault == "noise" else auto]
            with FAULTS[fault](mesh):
                for workload in options.workloads.split(","):
                    for streams in map(int, options.streams.split(",")):
                        key = f"{fault}, {workload}, {streams} at a time"
                        cells[key] = cell(never_slower.cell(served.loaded(workload, streams, options)))
    return {"cells": cells, "missed": list(missed(cells))}


def cell(seen: dict[str, Any]) -> dict[str, Any]:
    """Where nobody was answered both ways there is nothing to compare."""
    speeds = [seen[name] or 0.0 for name in ("ratio", "low", "high")]
    return {"failed": seen["failed"], "differ": seen["differ"], "speed": speeds[0], "of_95_%": speeds[1:]}


def missed(cells: dict[str, Any]) -> Iterator[str]:
    for key, seen in cells.items():
        if seen["failed"] or seen["differ"]:
            yield f"{key}: {seen['failed']} failed, {seen['differ']} texts differ"
        if seen["speed"] < BAR and not key.startswith("noise"):
            sure = "surely" if seen["of_95_%"][1] < BAR else "perhaps"
            yield f"{key}: {sure} {seen['speed']} of the speed without speculation, at least {BAR}"


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
