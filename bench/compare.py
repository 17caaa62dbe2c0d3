"""An older commit beside the working tree: the same requests to both, in turns, in one run.

Both meshes are started with `specmesh up`, each with its own files and environment, and talked to over HTTP only. They
take turns (old new, new old, ...), one block of requests each, and only one of them has work at a time, so that what
else the machine does falls on both alike. Each pair of blocks gives one ratio, new / old, of tokens a second; a cell (a
workload, a number of requests at a time, a method) is their geometric mean with its 95 % confidence interval. Texts of
both are compared.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench import turns
from bench.checkout import Checkout, checked_out
from bench.running_mesh import ROOT, SPECMESH, RunningMesh
from bench.shown import Shown, table
from bench.streams import Heard, Refused, listen
from bench.turns import Ratio
from bench.workloads import LEADING, WORKLOADS, salt_of

HELP = "speed of the working tree against an older commit, both running, in turns, with confidence intervals"
NAME = "measured"
CELL_BAR, MEAN_BAR = 0.97, 0.99
LEAST_PAIRS, MOST_PAIRS = 3, 40
# Starting both meshes: not for cells.
START_SECONDS, QUICK_SECONDS = 60.0, 300.0
# Between two blocks: what one mesh still does after its last token must not slow the other.
SETTLE_SECONDS = 0.2
SEED = 5
# Requests of a block where they come one after the other.
ONE_BY_ONE = 2
SHOWN = (
    Shown("Against an older commit", "mean|worst",
          {"mean&low&high": "tokens/s, new / old (95 %)", "cell": "cell"},
          "The same requests to both in turns; cells by workload, streams and method."),
)  # fmt: skip


class ComparedBlock(NamedTuple):
    """`speed`: tokens a second; 0 where a request failed."""

    speed: float
    first_token_s: float
    texts: list[str]
    failed: int


class ComparedCell(NamedTuple):
    """`weight`: its share of the time. `measure`: one block on one mesh; `turn` chooses the requests."""

    name: str
    weight: float
    measure: Callable[[RunningMesh, int], ComparedBlock]


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("commit", metavar="OLD_COMMIT", help="what the working tree is compared with")
    parser.add_argument("--workloads", default=",".join(LEADING), help=f"comma-separated, of {', '.join(WORKLOADS)}")
    parser.add_argument("--methods", default="naive,auto", help="comma-separated")
    parser.add_argument("--concurrency", default="1,4,16", help="requests at a time, comma-separated")
    parser.add_argument("--tokens", type=int, default=96, help="longest answer")
    parser.add_argument("--rounds", type=int, default=MOST_PAIRS, help="most pairs of blocks of a cell")
    parser.add_argument("--seconds-budget", type=float, default=1500.0, help="about; a cell has 3 pairs or more")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of both servers")
    parser.add_argument("--quick", action="store_true", help="edit and chat, 1 and 4 at a time, 5 minutes")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    if options.quick:
        options.workloads, options.concurrency, options.seconds_budget = "edit,chat", "1,4", QUICK_SECONDS
    if options.rounds < 2:
        raise SystemExit("--rounds: an interval needs at least 2 pairs")
    cells = cells_of(options)
    seconds = max(0.0, options.seconds_budget - START_SECONDS) / sum(cell.weight for cell in cells)
    settings = {"served_model_name": NAME} | dict(each.split("=", 1) for each in options.setting)
    seen: dict[str, dict[str, Any]] = {}
    with checked_out(options.commit) as old, both(old, settings) as meshes:
        for cell in cells:
            seen[cell.name] = judged(pairs(cell, meshes, seconds * cell.weight, options.rounds))
            print("  ".join(row(cell.name, seen[cell.name])), flush=True)
    figures = {"old": old.commit[:12], "tokens": options.tokens, "cells": seen, **summary(seen)}
    print(table(HEAD, [row(name, each) for name, each in seen.items()]))
    return figures


def cells_of(options: argparse.Namespace) -> list[ComparedCell]:
    names = options.workloads.split(",")
    if unknown := set(names) - set(WORKLOADS):
        raise SystemExit(f"no workload named {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    found = []
    for workload in names:
        for at_a_time in map(int, options.concurrency.split(",")):
            for method in options.methods.split(","):
                name = f"{workload}, {at_a_time} at a time, {method}"
                # A block of many takes longer: it needs more time for as many pairs.
                turns = blocks(workload, at_a_time, method, options.tokens, name)
                found.append(ComparedCell(name, 1 + at_a_time / 16, turns))
    return found


# Running --------------------------------------------------------------------------------------------------


@contextmanager
def both(old: Checkout, settings: dict[str, Any]) -> Iterator[list[RunningMesh]]:
    """Old and new, ready, each with its own ports and folder."""
    with ExitStack() as stack:
        meshes = []
        for specmesh, root in ((old.specmesh, old.root), (SPECMESH, ROOT)):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mesh-")))
            mesh = RunningMesh(folder, settings, specmesh, root)
            stack.callback(mesh.stop)
            # One after the other: the second compiles and loads while nothing else does.
            mesh.wait_until_ready()
            meshes.append(mesh)
        yield meshes


def pairs(
    cell: ComparedCell, meshes: Sequence[RunningMesh], seconds: float, most: int
) -> list[tuple[ComparedBlock, ComparedBlock]]:
    """(old, new) of each turn, after a block of each that is not kept: it warms caches and what a method measures.
    Another pair begins while at least half of it, by the mean of those before, fits into the time."""
    began = time.monotonic()
    for mesh in meshes:
        cell.measure(mesh, 0)
    found: list[tuple[ComparedBlock, ComparedBlock]] = []
    while len(found) < min(LEAST_PAIRS, most) or (len(found) < most and _has_time(began, seconds, len(found))):
        turn = len(found)
        blocks = {}
        for side in turns.order(turn):
            time.sleep(SETTLE_SECONDS)
            blocks[side] = cell.measure(meshes[side], turn + 1)
        found.append((blocks[0], blocks[1]))
    return found


def _has_time(began: float, seconds: float, done: int) -> bool:
    """The warm-up counts as a pair."""
    spent = time.monotonic() - began
    return spent + spent / (done + 1) / 2 < seconds


def blocks(
    workload: str, at_a_time: int, method: str, tokens: int, salt: str
) -> Callable[[RunningMesh, int], ComparedBlock]:
    """Every turn has other requests, and both meshes get the same in a turn."""
    size = max(at_a_time, ONE_BY_ONE)

    def asked(number: int, body: dict[str, Any]) -> dict[str, Any]:
        wish = {"model": NAME, "speculation": {"method": method}, "temperature": 0}
        longest = min(tokens, body["max_tokens"])
        return {**body, **wish, "cache_salt": salt_of(workload, salt, number), "max_tokens": longest}

    def measure(mesh: RunningMesh, turn: int) -> ComparedBlock:
        first = turn * size
        bodies = WORKLOADS[workload].requests(first + size, SEED)[first:]
        with ThreadPoolExecutor(at_a_time) as callers:
            return block_of(list(callers.map(lambda each: ask(mesh, asked(*each)), enumerate(bodies, first))))

    return measure


def ask(mesh: RunningMesh, body: dict[str, Any]) -> Heard | None:
    try:
        return listen(mesh.port, body)
    except (OSError, Refused) as failure:
        print(f"failed: {failure}", file=sys.stderr)
        return None


def block_of(answers: list[Heard | None]) -> ComparedBlock:
    heard = [each for each in answers if each is not None]
    if len(heard) < len(answers):
        return ComparedBlock(0.0, 0.0, [], len(answers) - len(heard))
    seconds = max(each.ended for each in heard) - min(each.sent for each in heard)
    first = sum(each.first - each.sent for each in heard) / len(heard)
    return ComparedBlock(sum(each.tokens for each in heard) / seconds, first, [each.text for each in heard], 0)


# Judging --------------------------------------------------------------------------------------------------


def judged(seen: Sequence[tuple[ComparedBlock, ComparedBlock]]) -> dict[str, Any]:
    """Figures of a cell. A block in which a request failed has no speed, and its pair no ratio."""
    whole = [(old, new) for old, new in seen if old.speed and new.speed]
    figures: dict[str, Any] = {
        "pairs": len(whole),
        "failed_old": sum(old.failed for old, _ in seen),
        "failed_new": sum(new.failed for _, new in seen),
        "texts": sum(len(old.texts) for old, _ in whole),
        "differ": sum(a != b for old, new in whole for a, b in zip(old.texts, new.texts, strict=True)),
    }
    if len(whole) < 2:
        return figures
    ratio = turns.of_pairs([new.speed / old.speed for old, new in whole])
    for side, name in enumerate(("old", "new")):
        figures[name] = round(sum(pair[side].speed for pair in whole) / len(whole), 2)
        figures[f"{name}_first_token_ms"] = round(sum(pair[side].first_token_s for pair in whole) / len(whole) * 1e3, 2)
    return figures | rounded(ratio)


def rounded(ratio: Ratio) -> dict[str, float]:
    return {name: round(value, 4) for name, value in ratio._asdict().items()}


def summary(cells: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Worst cell, mean, and which bars they miss."""
    ratios = {name: Ratio(*(seen[field] for field in Ratio._fields)) for name, seen in cells.items() if "mean" in seen}
    told = [
        f"{name}: {seen['failed_new']} requests failed"
        for name, seen in cells.items()
        if seen["failed_new"] or "mean" not in seen
    ]
    told += [f"{name}: {each['differ']} texts differ" for name, each in cells.items() if each["differ"]]
    if not ratios:
        return {"missed": [*told, "no cell has two pairs"]}
    worst = min(ratios, key=lambda name: ratios[name].mean)
    mean = turns.of_cells(list(ratios.values()))
    told += turns.missed(f"worst cell, {worst}", ratios[worst], CELL_BAR) + turns.missed("mean", mean, MEAN_BAR)
    return {"worst": {"cell": worst, **rounded(ratios[worst])}, "mean": rounded(mean), "missed": told}


HEAD = ("cell", "pairs", "old", "new", "new / old", "low", "high", "texts that differ")


def row(name: str, figures: dict[str, Any]) -> list[str]:
    ratios = [f"{figures[field]:.3f}" for field in ("old", "new", "mean", "low", "high") if "mean" in figures]
    return [name, str(figures["pairs"]), *(ratios or ["–"] * 5), str(figures["differ"])]
