"""Law 4 over HTTP: `auto` against no speculation, in turns, cold.

One server with its default settings. A cell is a kind of request and a number of streams: blocks of the same requests
with and without speculation alternate, and each cell gets the ratio of tokens per second with its 95 % interval. Cold:
every request has a `cache_salt` of its own, so nothing is drafted from other answers. Texts of both are compared.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from typing import Any

from bench import served
from bench.running_mesh import running_mesh
from bench.shown import Shown
from loadtest.workloads import REQUESTS

HELP = "auto against no speculation over HTTP, in turns: a ratio with its interval for each workload and streams"
NAME = "measured"
WORKLOADS = ("chat", "edit", "json", "retrieval", "agent", "schemas")
# Least ratios of cells; of the others the interval may not lie below 1. A grammar drafts what it forces.
BARS = {"schemas, 1": 1.5}
SHOWN = (
    Shown("Law 4: auto against no speculation", "cells>*",
          {"off": "off, tokens/s", "auto": "auto, tokens/s", "ratio&low&high": "auto / off (95 %)",
           "differ": "texts that differ"},
          "The same requests with and without speculation, in turns, cold. A cell is a kind of request and streams.",
          by=("dtype",)),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2-135m-instruct", help="name, folder, GGUF file or hub id")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "int8"))
    shown = f"comma-separated, of {', '.join(REQUESTS)}, or files that specmesh load takes"
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help=shown)
    parser.add_argument("--concurrency", default="1,4,16", help="streams, comma-separated")
    parser.add_argument("--tokens", type=int, default=96, help="longest answer")
    parser.add_argument("--requests", type=int, default=24, help="of a cell with one stream, for each side")
    parser.add_argument("--waves", type=int, default=12, help="requests of each stream when there are several")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of the server")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    own = {"model": options.model, "served_model_name": NAME, "dtype": options.dtype}
    own |= dict(each.split("=", 1) for each in options.setting)
    cells: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="store-") as store, running_mesh(store_dir=store, **own) as mesh:
        options.cold, options.block, options.turns, options.served = True, 2, 0, sides(mesh.url)
        for workload in options.workloads.split(","):
            for streams in map(int, options.concurrency.split(",")):
                cells[f"{workload}, {streams}"] = cell(served.loaded(workload, streams, options))
    figures = {"model": options.model, "dtype": options.dtype, "tokens": options.tokens, "cells": cells}
    return figures | {"mean": mean(cells), "missed": missed(cells)}


def sides(url: str) -> list[str]:
    return [f"label=off;url={url};speculation=off", f"label=auto;url={url}"]


def cell(seen: dict[str, Any]) -> dict[str, Any]:
    off, auto = served.lines(seen)
    return {
        "off": off["tokens_per_s"],
        "auto": auto["tokens_per_s"],
        **auto["of_first"],
        "first_token_off_ms": off["ttft_p50_ms"],
        "first_token_auto_ms": auto["ttft_p50_ms"],
        "accepted_per_step": auto["accepted_per_step"],
        "texts": auto["compared"],
        "differ": auto["texts_differ"],
        "failed": off["failed"] + auto["failed"],
    }


def mean(cells: dict[str, dict[str, Any]]) -> float | None:
    """Geometric, of the cells that have a ratio."""
    ratios = [each["ratio"] for each in cells.values() if each["ratio"]]
    return round(statistics.geometric_mean(ratios), 3) if ratios else None


def missed(cells: dict[str, dict[str, Any]]) -> list[str]:
    told = []
    for name, seen in cells.items():
        if seen["failed"] or seen["differ"]:
            told.append(f"{name}: {seen['failed']} requests failed, {seen['differ']} texts differ")
        if seen["high"] is None:
            told.append(f"{name}: no interval")
        elif seen["high"] < 1 or seen["ratio"] < BARS.get(name, 0.0):
            told.append(f"{name}: auto is {seen['ratio']:.3f} ({seen['low']:.3f} to {seen['high']:.3f}) of off")
    return told
