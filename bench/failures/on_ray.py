"""What callers notice when a machine of a Ray cluster dies: streams at three workers on three machines, one of which is
killed when all streams have begun, again and again. Compared with a calm run. The machines are Ray nodes of this one.

For each death, in seconds from the kill:

noticed    the keeper has given the worker up, and asked for another
started    its watcher runs on another machine
ready      it may be given work

`--round-trip` measures one stream's time between tokens instead, on Ray and under `up` on this machine, in turns.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import statistics
import threading
import time
from typing import Any

from bench.failures.failover import NAME, FailoverHeard, together, told
from bench.failures.ray_machines import kill_machine, three_machines
from bench.running_mesh import MeshFailed, free_ports, running_mesh
from bench.shown import Shown
from bench.step_overhead import gaps_of
from bench.suite import LeftOut
from services.placement import ray_cluster
from services.placement.ray_cluster import KeeperLink

HELP = "streams on a Ray cluster of which a machine dies, seconds until its worker is placed anew; --round-trip"
MOCK = {"engine": "mock", "mock_profile": '{"step_ms": 5, "acceptance": 0.6, "vocab_size": 49152}'}
WORKERS = 3
READY_WITHIN = 240.0  # s
LOOK_EVERY = 0.02  # s
# Of `ready`, p50.
BAR_S = 5.0
RATIO_BAR = 1.05
PHASES = ("noticed", "started", "ready")
SHOWN = (
    Shown("A machine of a Ray cluster that dies", "machine",
          {"times": "times", "failed": "failed", "differ": "texts that differ", "noticed p50, s": "noticed p50, s",
           "started p50, s": "started p50, s", "ready p50, s": "ready p50, s"},
          "Three nodes on one machine. A worker is placed anew: its loss is noticed, another is started, it is ready.",
          by=("engine",)),
    Shown("Between two tokens, on Ray and under `up`", "",
          {"up, ms": "up, ms", "ray, ms": "on Ray, ms", "ratio": "ratio"}),
)  # fmt: skip


# Seconds from a kill, by phase.
Death = dict[str, float]


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--times", type=int, default=5, metavar="N", help="deaths of a machine (default 5)")
    parser.add_argument("--streams", type=int, default=8, metavar="N", help="at a time (default 8)")
    parser.add_argument("--tokens", type=int, default=400, metavar="N", help="of each answer (default 400)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="which machine it is each time (default 1)")
    engines = "of the workers; torch: the default model (default mock)"
    parser.add_argument("--engine", choices=("mock", "torch"), default="mock", help=engines)
    trip = "compare the time between tokens with that under `up`"
    parser.add_argument("--round-trip", action="store_true", help=trip)
    parser.add_argument("--rounds", type=int, default=6, help="streams of each kind for --round-trip, in turns")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    if importlib.util.find_spec("ray") is None:
        raise LeftOut(ray_cluster.INSTALL)
    figures = round_trip(options) if options.round_trip else deaths(options)
    return figures | {"missed": missed(figures)}


def missed(figures: dict[str, Any]) -> list[str]:
    found = []
    if "ratio" in figures and figures["ratio"] > RATIO_BAR:
        found.append(f"the time between tokens is {figures['ratio']} times that of up, the bar is {RATIO_BAR}")
    if seen := figures.get("machine"):
        if seen["failed"] or seen["differ"]:
            found.append(f"{seen['failed']} failed, {seen['differ']} texts differ")
        if seen["ready p50, s"] > BAR_S:
            found.append(f"a worker is placed anew after {seen['ready p50, s']} s, the bar is {BAR_S}")
    return found


# A machine dies ----------------------------------------------------------------------------------------------------


def deaths(options: argparse.Namespace) -> dict[str, Any]:
    settings: dict[str, Any] = MOCK if options.engine == "mock" else {"threads": 1}
    # What was learned in the calm run would end every answer before the death.
    settings = {**settings, "served_model_name": NAME, "method": "ngram", "workers": WORKERS}
    chance, seen, heard = random.Random(options.seed), list[Death](), list[FailoverHeard]()
    with three_machines() as cluster, mesh_on_ray(cluster.address, **settings) as mesh:
        ray_cluster.connect(cluster.address)
        link = ray_cluster.find_keeper()
        assert link is not None
        until_all_are_ready(link)
        calm, _ = together(mesh, options, lambda: None)
        for _ in range(options.times):
            more, death = together(mesh, options, lambda: killed(cluster, link, chance))
            heard, seen = heard + more, [*seen, death]
            # Ray sets signal handlers, which only the main thread may.
            cluster.add_node(num_cpus=2)
            until_all_are_ready(link)
            print(json.dumps({**told(heard, calm), **phases(seen[-1:])}), flush=True)
    machine = {"times": options.times, **told(heard, calm), **phases(seen)}
    return {"engine": options.engine, "calm": told(calm, calm), "machine": machine}


def mesh_on_ray(address: str, **settings: Any) -> Any:
    # Of processes under ever new names.
    ports = free_ports(100)
    return running_mesh(on="ray", ray_address=address, metrics_port=ports, **settings)


def phases(seen: list[Death]) -> dict[str, float]:
    """A death's p50 and longest of each phase."""
    figures: dict[str, float] = {}
    for phase in PHASES:
        took = [each[phase] for each in seen]
        figures |= {f"{phase} p50, s": round(statistics.median(took), 2), f"{phase}, longest, s": round(max(took), 2)}
    return figures


def killed(cluster: Any, link: KeeperLink, chance: random.Random) -> Death:
    before = watchers(link)
    # The streamer's machine is where clients are, and the cluster's head.
    home = next(each["machine"] for each in before if each["role"] == "streamer")
    machine = chance.choice(sorted({each["machine"] for each in before if each["role"] == "worker"} - {home}))
    lost = {each["instance"] for each in before if each["role"] == "worker" and each["machine"] == machine}
    kept = {each["instance"] for each in before} - lost
    # Taking the node down returns once its processes are gone; what others see begins at once.
    killing = threading.Thread(target=kill_machine, args=(cluster, machine))
    killing.start()
    struck, at = time.perf_counter(), dict[str, float]()
    while len(at) < len(PHASES):
        now = watchers(link)
        new = [each for each in now if each["role"] == "worker" and each["instance"] not in kept | lost]
        held = len(new) == len(lost)
        reached = {
            "noticed": held and not lost & {each["instance"] for each in now},
            "started": held and all(each["pid"] for each in new),
            "ready": held and all(each["state"] == "ready" for each in new),
        }
        for phase in PHASES:
            if reached[phase]:
                at.setdefault(phase, time.perf_counter() - struck)
        if time.perf_counter() - struck > READY_WITHIN:
            raise MeshFailed(f"no worker placed anew within {READY_WITHIN:g} s: {now}")
        time.sleep(LOOK_EVERY)
    killing.join()
    return at


def watchers(link: KeeperLink) -> list[dict[str, Any]]:
    status = link.status()
    return list(status["watchers"]) if status else []


def until_all_are_ready(link: KeeperLink) -> None:
    end = time.monotonic() + READY_WITHIN
    while [each["state"] for each in watchers(link) if each["role"] == "worker"] != ["ready"] * WORKERS:
        if time.monotonic() > end:
            raise MeshFailed(f"no {WORKERS} workers within {READY_WITHIN:g} s: {watchers(link)}")
        time.sleep(0.1)


# Between two tokens ------------------------------------------------------------------------------------------------


def round_trip(options: argparse.Namespace) -> dict[str, Any]:
    settings = {**MOCK, "served_model_name": NAME}
    with (
        three_machines() as cluster,
        mesh_on_ray(cluster.address, **settings) as on_ray,
        running_mesh(**settings) as under_up,
    ):
        sides = {"up": under_up, "ray": on_ray}
        gaps: dict[str, list[float]] = {side: [] for side in sides}
        for turn in range(options.rounds):
            for side in list(sides)[:: 1 if turn % 2 else -1]:
                mine = gaps_of(sides[side], {"method": "naive"}, options.tokens, f"{side} {turn}")
                gaps[side].append(statistics.median(mine) * 1e3)
    ratios = [ray / up for ray, up in zip(gaps["ray"], gaps["up"], strict=True)]
    return {
        **{f"{side}, ms": round(statistics.median(each), 3) for side, each in gaps.items()},
        "ratio": round(statistics.median(ratios), 3),
        "rounds": options.rounds,
    }
